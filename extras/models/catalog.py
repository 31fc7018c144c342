"""The models that `--models` names: directories, files in TOML and NAME=PATH become entries, with their own flags."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from extras.models.config import NAMED, ModelEntry, ModelsConfig, parse_duration
from extras.models.model_keys import model_flags
from messages.config.server import Config
from messages.errors import UsageError, errors_as
from runtime.extras import load_sections
from runtime.gguf.gguf_file import SUFFIX, is_gguf, is_model, model_stem
from supervisor.flags import CORE_SECTIONS, flag_fields, flags_of, parse_flags
from supervisor.model.lookup import OTHER_WEIGHTS
from supervisor.run import check_flags

OF_SERVER = frozenset(
    """
    host port ssl_certfile ssl_keyfile ssl_ca_certs cors_allow_origins allowed_hosts root_path run_dir
    frontend_workers external record record_gb served_model_name models keep_alive models_memory_gb
    help help_all version
    """.split()  # noqa: SIM905
)
"""Fields of flags that are not for one model."""

FOLDER_DEPTH = 2
"""Folders of folders that are searched: LM Studio has PUBLISHER/REPOSITORY/FILE.gguf."""

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def read_entries(section: ModelsConfig) -> tuple[ModelEntry, ...]:
    """Returns all models in order. Raises `UsageError` for every mistake that is seen without reading a model."""
    entries: dict[str, tuple[ModelEntry, str]] = {}
    for text in section.models:
        # a RuntimeError: ~USER without such a user
        with errors_as(UsageError, f"--models {text}", of=(OSError, RuntimeError)):
            found = list(_read(text, parse_duration(section.keep_alive)))
        if not found:
            raise UsageError(f"--models: {text} contains no models: neither files *.gguf nor folders with a model")
        for entry, where in found:
            if not (entry.name and entry.name.isprintable()):
                raise UsageError(f"{where}: {entry.name!r} is not a possible name for a model")
            if entry.name in entries:
                raise UsageError(f"--models: two models are named {entry.name}: {entries[entry.name][1]} and {where}")
            entries[entry.name] = entry, where
    for entry, where in entries.values():
        if len(entry.flags) > 2:
            with errors_as(UsageError, where, of=UsageError):
                check_flags(parse_flags(model_flags(section.shared_flags, entry)))
    return tuple(entry for entry, _ in entries.values())


def shared_flags(config: Config) -> tuple[str, ...]:
    """Returns the flags of the command line that apply to every model."""
    config = replace(config, run=replace(config.run, standby=False))  # a fork starts as fast
    sections: list[msgspec.Struct] = [getattr(config, name) for name in CORE_SECTIONS]
    sections += [section.of(config) for name, section in load_sections().items() if name != ModelsConfig.EXTRA]
    flags: list[str] = []
    for section in sections:
        defaults = {field.name: field.default for field, _ in flag_fields(type(section)) if field.name in OF_SERVER}
        flags += flags_of(replace(section, **defaults))
    return tuple(flags)


def _read(text: str, keep_alive_s: float) -> Iterator[tuple[ModelEntry, str]]:
    """Yields the models that a value of `--models` names, each with the place where it is named."""
    path = Path(text).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        for model in _models_in(path, FOLDER_DEPTH):
            folder = model.relative_to(path).parent
            yield _entry(str(folder / _name_of(model)), model, keep_alive_s), str(model)
    elif path.is_file() and not is_gguf(path):
        yield from _read_file(path, keep_alive_s)
    elif path.exists() or (named := NAMED.fullmatch(text)) is None:
        yield _entry(_name_of(path) if path.exists() else text, _find(text, Path(), "--models"), keep_alive_s), text
    else:
        yield _entry(named[1], _find(named[2], Path(), f"--models {named[1]}"), keep_alive_s), text


def _read_file(file: Path, keep_alive_s: float) -> Iterator[tuple[ModelEntry, str]]:
    with errors_as(UsageError, f"--models: {file} is not a readable file in TOML", of=(OSError, ValueError)):
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    tables = content.pop("models", {})
    if content or not tables or not isinstance(tables, dict):
        raise UsageError(f"{file}: {next(iter(content), 'models')}: the file has a table [models.NAME] for each model")
    for name, table in cast("dict[str, Any]", tables).items():
        where = f"{file}: models.{name}"
        if not isinstance(table, dict):
            raise UsageError(f"{where}: it must be a table with a key model")
        yield _read_table(name, cast("dict[str, Any]", table), file.parent, where, keep_alive_s), where


def _read_table(name: str, table: dict[str, Any], folder: Path, where: str, keep_alive_s: float) -> ModelEntry:
    model, keep_alive, preload = table.pop("model", None), table.pop("keep-alive", None), table.pop("preload", False)
    if not isinstance(model, str) or not model:
        raise UsageError(f"{where}: model: it must be the model's path or its name on the hub")
    if not isinstance(preload, bool):
        raise UsageError(f"{where}: preload: it must be true or false")
    if keep_alive is not None:
        with errors_as(UsageError, f"{where}: keep-alive", of=ValueError):
            keep_alive_s = parse_duration(str(keep_alive))
    entry = _entry(name, _find(model, folder, f"{where}: model"), keep_alive_s)
    flags = [flag for key, value in table.items() for flag in _flags(key, value, f"{where}: {key}")]
    return replace(entry, flags=(*entry.flags, *flags), preload=preload)


def _flags(key: str, value: Any, where: str) -> list[str]:
    """Returns the flags for a key of a table, which the command line's parser checks; none for a switch that is off."""
    if key.replace("-", "_") in OF_SERVER:
        raise UsageError(f"{where}: it is not for one model; give --{key} on the command line")
    if isinstance(value, bool):
        return [f"--{key}"] * value
    return [f"--{key}={each}" for each in (cast("list[Any]", value) if isinstance(value, list) else [value])]


def _entry(name: str, model: Path | str, keep_alive_s: float) -> ModelEntry:
    """`model` is a path, or a name on the hub."""
    text = str(model.absolute()) if isinstance(model, Path) else model
    flags = (f"--model={text}", f"--served-model-name={name}")
    return ModelEntry(name=name, flags=flags, keep_alive_s=keep_alive_s, is_on_hub=isinstance(model, str))


def _find(text: str, folder: Path, where: str) -> Path | str:
    path = folder / Path(text).expanduser()
    if path.exists():
        return path
    if HUB_NAME.fullmatch(text) and not text.startswith(".") and not text.endswith(SUFFIX):
        return text
    raise UsageError(f"{where}: there is no file or directory {path.absolute()}")


def _models_in(folder: Path, depth: int) -> Iterator[Path]:
    """Yields the files and folders with one model each, down to `depth` folders below this one."""
    for child in sorted(folder.iterdir()):
        if child.name.startswith("."):
            continue
        if not child.is_dir():
            if child.suffix == SUFFIX and is_model(child.name):
                yield child
        elif _has_one_model(child):
            yield child
        elif depth:
            yield from _models_in(child, depth - 1)


def _has_one_model(folder: Path) -> bool:
    """False for a folder of several quantizations, and for one without any."""
    if any(any(folder.glob(pattern)) for pattern in OTHER_WEIGHTS):
        return (folder / "config.json").is_file()
    files = [file for file in folder.glob(f"*{SUFFIX}") if is_model(file.name)]
    return len(files) == 1 or (not files and (folder / "config.json").is_file())


def _name_of(path: Path) -> str:
    return model_stem(path.name) if path.is_file() else path.absolute().name
