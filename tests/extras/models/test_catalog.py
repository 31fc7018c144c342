"""Which models `--models` names, with which flags; every mistake is an error that names its place."""

import os
from pathlib import Path

import pytest

from extras.models.catalog import read_entries, shared_flags
from extras.models.config import FOR_EVER_S, ModelEntry, ModelsConfig, name_models, parse_duration
from extras.models.server import GIB, add_facts, server_commands
from messages.errors import UsageError
from supervisor.flags import parse_flags
from supervisor.run import build_config, check_flags, launch


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A directory of models, as people have them."""
    for name in ("small.gguf", "large-00001-of-00002.gguf", "large-00002-of-00002.gguf", "mmproj-small.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    for folder, file in (("hf", "config.json"), ("quantized", "q4.gguf"), ("empty", "README.md")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_text("{}")
    for other in ("notes.txt", "._small.gguf"):
        (tmp_path / other).write_text("")
    return tmp_path


def entries_of(*models: str | Path, keep_alive: str = "5m") -> dict[str, ModelEntry]:
    section = ModelsConfig(models=tuple(map(str, models)), keep_alive=keep_alive)
    return {entry.name: entry for entry in read_entries(section)}


def model_of(entry: ModelEntry) -> str:
    return entry.flags[0].removeprefix("--model=")


def write_file(folder: Path, text: str) -> Path:
    file = folder / "models.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_directory_has_its_files_and_folders_with_models(models: Path):
    found = entries_of(models)
    assert {name: model_of(entry) for name, entry in found.items()} == {
        "hf": str(models / "hf"),
        "large": str(models / "large-00001-of-00002.gguf"),
        "quantized": str(models / "quantized"),
        "small": str(models / "small.gguf"),
    }
    assert {entry.keep_alive_s for entry in found.values()} == {300.0}
    assert not any(entry.is_on_hub or entry.preload for entry in found.values())


def test_each_file_of_a_folder_of_several_quantizations_is_a_model(models: Path):
    for path in (
        *("quants/x-Q4_K_M.gguf", "quants/x-Q8_0.gguf", "quants/mmproj-x.gguf", "quants/config.json"),
        *("publisher/one/y.gguf", "publisher/two/z-Q4_0.gguf", "publisher/two/z-F16-00001-of-00002.gguf"),
        *("both/config.json", "both/model.safetensors", "both/a.gguf", "both/b.gguf"),
        *("a/b/c/x.gguf", "a/b/d/e/too-deep.gguf", ".cache/hidden.gguf", "quants/.hidden/x.gguf"),
    ):
        (models / path).parent.mkdir(parents=True, exist_ok=True)
        (models / path).write_bytes(b"GGUF")
    found = {name: model_of(entry) for name, entry in entries_of(models).items()}
    assert {name: path for name, path in found.items() if name not in ("hf", "large", "quantized", "small")} == {
        "quants/x-Q4_K_M": str(models / "quants" / "x-Q4_K_M.gguf"),
        "quants/x-Q8_0": str(models / "quants" / "x-Q8_0.gguf"),
        "publisher/one": str(models / "publisher" / "one"),
        "publisher/two/z-F16": str(models / "publisher" / "two" / "z-F16-00001-of-00002.gguf"),
        "publisher/two/z-Q4_0": str(models / "publisher" / "two" / "z-Q4_0.gguf"),
        "both": str(models / "both"),
        "a/b/c": str(models / "a" / "b" / "c"),
    }


def test_names_paths_and_hub_names_are_models_too(models: Path):
    provided = [
        f"a={models / 'small.gguf'}",
        "o/b=org/model",
        models / "hf",
        models / "large-00001-of-00002.gguf",
        "o/m",
    ]
    found = entries_of(*provided, keep_alive="-1")
    assert list(found) == ["a", "o/b", "hf", "large", "o/m"]
    assert {name for name, entry in found.items() if entry.is_on_hub} == {"o/b", "o/m"}
    assert model_of(found["o/b"]) == "org/model"
    assert found["a"].keep_alive_s == FOR_EVER_S
    assert found["a"].flags[1] == "--served-model-name=a"


def test_relative_paths_are_those_of_the_working_directory(models: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(models)
    assert model_of(entries_of("x=small.gguf")["x"]) == str(models / "small.gguf")
    assert "small" in entries_of(".")


def test_a_file_has_flags_for_each_model(models: Path):
    text = """
        [models.small]
        model = "small.gguf"
        keep-alive = 30
        preload = true
        max-model-len = 128
        restart = ["scheduler=never", "tokenizer=never"]
        no-standby = true
        enforce-eager = false
        [models."org/other"]
        model = "org/other"
        keep-alive = "-1"
    """
    found = entries_of(write_file(models, text))
    small, other = found["small"], found["org/other"]
    assert small == ModelEntry(
        name="small",
        flags=(
            f"--model={models / 'small.gguf'}",
            "--served-model-name=small",
            "--max-model-len=128",
            "--restart=scheduler=never",
            "--restart=tokenizer=never",
            "--no-standby",
        ),
        keep_alive_s=30.0,
        preload=True,
    )
    assert other.is_on_hub
    assert other.keep_alive_s == FOR_EVER_S
    config = check_flags(parse_flags(list(small.flags)))
    assert config.model.max_model_len == 128
    assert not config.run.standby


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\nmodel = 'none.gguf'", ["models.a: model", "no file or directory", "none.gguf"]),
        ("[models.a]\nmodel = './none'", ["models.a: model", "no file or directory"]),
        ("[models.a]\nmodel = 3", ["models.a: model:"]),
        ("[models.a]\nmax-model-len = 3", ["models.a: model:"]),
        (
            "[models.a]\nmodel = 'hf'\nmax-model-length = 3",
            ["models.a: --max-model-length", "did you mean --max-model-len?"],
        ),
        ("[models.a]\nmodel = 'hf'\nmax-model-len = 'x'", ["models.a: --max-model-len: 'x'", "whole number"]),
        ("[models.a]\nmodel = 'hf'\nmax-model-len = 0", ["models.a: --max-model-len: '0'"]),
        ("[models.a]\nmodel = 'hf'\nmax-model-len = true", ["models.a: --max-model-len: expected one"]),
        ("[models.a]\nmodel = 'hf'\nmax-model-len = {x = 1}", ["models.a: --max-model-len:", "whole number"]),
        ("[models.a]\nmodel = 'hf'\nno-standby = 1", ["models.a: --no-standby", "'1'"]),
        ("[models.a]\nmodel = 'hf'\nhelp = true", ["models.a: help", "not for one model"]),
        ("[models.a]\nmodel = 'hf'\nport = 1", ["models.a: port", "--port on the command line"]),
        ("[models.a]\nmodel = 'hf'\nkeep-alive = 'soon'", ["models.a: keep-alive", "'soon' is not a time"]),
        ("[models.a]\nmodel = 'hf'\npreload = 1", ["models.a: preload"]),
        ("[models.a]\nmodel = 'hf'\ndevice = 'gpu'", ["models.a: --device", "'gpu' is not valid"]),
        ("[models.a]\nmodel = 'hf'\ntensor-parallel = 2\nspeculative = 'mtp'", ["models.a: --tensor-parallel"]),
        ("[models]\na = 'hf'", ["models.a:", "a table"]),
        ("models = 3", ["models:", "[models.NAME]"]),
        ("[model.a]\nmodel = 'hf'", ["model:", "[models.NAME]"]),
        ("[models.a", ["not a readable file in TOML", "Expected ']'"]),
        *((text, ["models:", "[models.NAME]"]) for text in ("[models]", "")),
        *((f"[models.{name}]\nmodel = 'hf'", ["not a possible name"]) for name in ('""', '"a\\nb"')),
    ],
)
def test_a_mistake_in_a_file_names_the_file_the_model_and_the_key(models: Path, text: str, words: list[str]):
    file = write_file(models, text)
    with pytest.raises(UsageError) as raised:
        entries_of(file)
    for word in (str(file), *words):
        assert word in str(raised.value)


def test_mistakes_on_the_command_line_are_named(models: Path):
    small, bad = models / "small.gguf", models / "bad.toml"
    bad.write_bytes(b"\xff")
    for provided, words in (
        ([models / "empty"], "contains no models"),
        ([f"a={small}", f"a={models / 'hf'}"], "two models are named a"),
        ([models, f"small={small}"], "two models are named small"),
        ([f"a={models / 'none'}"], "no file or directory"),
        ([models / "none"], "no file or directory"),
        (["none.gguf"], "no file or directory"),
        *(([provided], "too long") for provided in ("x" * 300, f"a={'x' * 300}")),
        (["~no-such-user/x"], "home directory"),
        ([bad], "not a readable file"),
    ):
        with pytest.raises(UsageError, match=words):
            entries_of(*provided)


@pytest.mark.parametrize(
    ("arguments", "renamed"),
    [
        (["--model", "a=/x", "--port", "1", "--model=b=/y"], ["--port", "1", "--models=a=/x", "--models=b=/y"]),
        (["--port=1", "--model", "a=/x"], ["--port=1", "--models=a=/x"]),
        (["--model", "/x"], ["--model", "/x"]),
        (["--model", "/x/a=b/c"], ["--model", "/x/a=b/c"]),
        *((["--model", f"a={path}"], [f"--models=a={path}"]) for path in ("x" * 300, "~no-such-user/x")),
        (["--model", "~no-such-user/a=b"], ["--models=~no-such-user/a=b"]),
        (["--model"], ["--model"]),
        ([], []),
    ],
)
def test_models_with_names_are_those_of_the_other_flag(arguments: list[str], renamed: list[str]):
    assert name_models(arguments) == renamed


def test_a_path_with_an_equals_sign_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("a=b").mkdir()
    assert name_models(["--model", "a=b"]) == ["--model", "a=b"]


def test_of_several_models_each_has_a_name():
    with pytest.raises(UsageError, match="/y has no name"):
        name_models(["--model", "a=/x", "--model", "/y"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5m", 300.0), ("90", 90.0), ("0", 0.0), ("0s", 0.0), ("1h30m", 5400.0), ("1.5h", 5400.0), (" 10s ", 10.0)),
        *(("500ms", 0.5), ("-1", FOR_EVER_S), ("-5m", FOR_EVER_S), ("-0", 0.0), ("+3", 3.0)),
        *(("2562047h", 9223369200.0), ("2562048h", FOR_EVER_S), ("9" * 32, FOR_EVER_S)),
    ],
)
def test_times_are_those_of_ollama(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "m", "5 m", "5d", "--5", "inf", "1e3", "5m-3s", "nan", "1h30", "9" * 33, "1" * 60 + "x", "1" * 31 + "x"],
)
def test_other_times_are_refused(text: str):
    with pytest.raises(ValueError, match="is not a time"):
        parse_duration(text)


def test_flags_for_all_models_are_kept_and_those_of_the_address_are_not(models: Path):
    flags = ["--host", "0.0.0.0", "--port", "1", "--cors-allow-origins", "*", "--max-num-seqs", "3", "--api-key", "k"]
    flags += ["--ssl-certfile", "c", "--run-dir", "/r", "--log-format", "json", "--restart", "scheduler=never"]
    kept = shared_flags(check_flags(parse_flags([*flags, "--models", str(models), "--keep-alive", "1"])))
    assert sorted(kept) == [
        *("--api-key=k", "--log-format=json", "--max-num-seqs=3", "--no-standby", "--restart=scheduler=never")
    ]


def test_the_configuration_has_the_models_and_the_memory(models: Path):
    config = build_config(parse_flags(["--models", str(models), "--models-memory-gb", "2.5", "--dtype", "float32"]))
    section = ModelsConfig.of(config)
    assert config.facts.served_names == ("hf", "large", "quantized", "small")
    assert section.models_memory_gb == 2.5
    assert "--dtype=float32" in section.shared_flags
    assert config.model.dtype == "auto"
    assert [command.name for command in server_commands(config)] == ["models", "frontend"]
    by_default = ModelsConfig.of(add_facts(check_flags(parse_flags(["--models", str(models)]))))
    assert 0 < (by_default.models_memory_gb or 0) < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB


@pytest.mark.parametrize(
    "flags",
    [
        ["--model", "x"],
        ["--served-model-name", "x"],
        ["--gguf-file", "x"],
        ["--mmproj", "x.gguf"],
        ["--lora", "a=b"],
        ["--external", "scheduler"],
        ["--record", "x"],
        ["--frontend-workers", "2"],
        ["--batch-dir", "x"],
        ["--remote-engines", "tcp://127.0.0.1:1"],
        ["--max-engines", "2"],
    ],
)
def test_flags_that_make_no_sense_with_several_models_are_refused(models: Path, flags: list[str]):
    with pytest.raises(UsageError, match=r"^--models and "):
        build_config(parse_flags(["--models", str(models), *flags]))


def test_flags_of_several_models_need_them():
    for flags in (["--keep-alive", "3"], ["--models-memory-gb", "1"]):
        with pytest.raises(UsageError, match="they go with --models"):
            check_flags(parse_flags(flags))
    with pytest.raises(UsageError, match="--keep-alive: 'x' is not a time"):
        check_flags(parse_flags(["--models", "a=b", "--keep-alive", "x"]))


def test_the_launcher_reports_a_mistake(models: Path, capfd: pytest.CaptureFixture[str]):
    assert launch(["--model", f"a={models / 'none.gguf'}", "--port", "0"]) == 2
    assert "--models a: there is no file or directory" in capfd.readouterr().err
