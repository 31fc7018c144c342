"""The manifest next to recorded frames: the server's description, with which `launch.py replay` starts it again."""

import hashlib
import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from messages import VERSION
from messages.config.server import Config
from messages.errors import SluiceError, UsageError, errors_as
from messages.schema import SCHEMA_VERSION
from runtime.model_files import OTHER_FILES, WEIGHT_SUFFIXES
from runtime.own_directory import names_in, own_directory
from runtime.stage_files import END_BYTES

T = TypeVar("T")

FILE_NAME = "manifest.json"
MODEL_FILES = (*(f"*{suffix}" for suffix in WEIGHT_SUFFIXES), *OTHER_FILES)
LIBRARIES = ("torch", "triton", "numpy", "msgspec", "pyzmq", "tokenizers", "transformers", "llguidance")


class ModelFile(msgspec.Struct, frozen=True):
    """`digest` is of the size and of both ends."""

    name: str
    num_bytes: int
    digest: str

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes, {self.digest}"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`config` is that of the run, without keys; its `scheduling.seed` is what seeds of requests without one came from.
    A recorded request has its seed in its `TokenizeMsg`."""

    version: str
    schema_version: int
    begun: str
    config: Config
    model_files: tuple[ModelFile, ...]
    python: str
    machine: str
    num_cpus: int
    libraries: dict[str, str]
    is_redacted: bool = False
    """Placeholders stand for the texts and tokens in the frames."""


@cache
def library_versions() -> dict[str, str]:
    """Returns the versions of those of `LIBRARIES` that are installed."""
    return {name: version for name in LIBRARIES if (version := _version_of(name))}


def make_manifest(config: Config) -> Manifest:
    """Returns the manifest of a server that starts now."""
    return Manifest(
        version=VERSION,
        schema_version=SCHEMA_VERSION,
        begun=datetime.now(UTC).isoformat(timespec="seconds"),
        config=without_keys(config),
        model_files=identify_model(Path(config.facts.model_dir)),
        python=platform.python_version(),
        machine=platform.platform(),
        num_cpus=os.cpu_count() or 0,
        libraries=library_versions(),
    )


def identify_model(model_dir: Path) -> tuple[ModelFile, ...]:
    """Returns the files of the model, by which another directory with the same model is recognised."""
    files = sorted({file for pattern in MODEL_FILES for file in model_dir.glob(pattern) if file.is_file()})
    return tuple(map(identify_file, files))


def digests_of(model_dir: Path) -> dict[str, str]:
    """Returns a short text about the contents of each file of the model, by name."""
    return {file.name: str(file) for file in identify_model(model_dir)}


def without_keys(config: Config) -> Config:
    """Returns the configuration without the keys of clients and operators."""
    return msgspec.structs.replace(config, http=msgspec.structs.replace(config.http, api_key=(), admin_key=()))


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it into `folder`, which only this user may read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def read_manifest(folder: Path) -> Manifest:
    """Raises `SluiceError` if there is none that can be read."""
    manifest = read_json(folder / FILE_NAME, Manifest)
    if manifest is None:
        what = f"is not a recording: there is no {FILE_NAME} in it" if folder.is_dir() else "does not exist"
        raise SluiceError(f"{folder} {what}")
    return manifest


def read_json(file: Path, kind: type[T]) -> T | None:
    """Returns what the file holds, `None` if it does not exist. Raises `SluiceError` if it cannot be read."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SluiceError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SluiceError(f"{file} is damaged, or was written by another version of this program: {error}") from None


def claim_recording(folder: str) -> Path:
    """Makes the directory for a recording private and returns its absolute path.

    Raises `UsageError` if it is in use or belongs to another user.
    """
    path = Path(folder).absolute()
    with errors_as(UsageError, f"--record: {path} cannot be used"):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_directory(path) as directory:
            is_used = bool(names_in(directory))
            if not is_used:
                os.fchmod(directory, 0o700)
    if is_used:
        raise UsageError(f"--record: {path} is not empty; choose a new directory")
    return path


def identify_file(file: Path) -> ModelFile:
    """Returns what another copy of the file is recognised by. Raises `OSError`."""
    num_bytes = file.stat().st_size
    with file.open("rb") as stream:
        ends = stream.read(END_BYTES)
        stream.seek(max(0, num_bytes - END_BYTES))
        ends += stream.read(END_BYTES)
    return ModelFile(file.name, num_bytes, hashlib.blake2b(b"%d " % num_bytes + ends, digest_size=16).hexdigest())


def _version_of(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""
