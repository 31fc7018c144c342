import json
import os
from pathlib import Path

import pytest

import supervisor.model.lookup
from messages.config.server import ModelConfig
from messages.errors import BootError, UsageError
from supervisor.console import Console
from supervisor.model.lookup import BUNDLED_MODEL, find_draft_model, find_model, find_tokenizer, model_name
from tests.gguf_files import write_model


def test_no_model_means_the_chat_model_or_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor.model.lookup, "CHAT_MODEL", tmp_path / "Chat-Model.gguf")
    monkeypatch.setattr(supervisor.model.lookup, "BUNDLED_MODEL", tmp_path)
    assert find_model(ModelConfig()) == tmp_path
    monkeypatch.setattr(supervisor.model.lookup, "BUNDLED_MODEL", tmp_path / "absent")
    with pytest.raises(BootError, match="the bundled model is not in"):
        find_model(ModelConfig())


def test_a_directory_is_itself_under_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model(ModelConfig(model="model")) == tmp_path / "model"
    assert find_model(ModelConfig(model=str(tmp_path / "model"))) == tmp_path / "model"


def test_the_tokenizer_is_the_models_unless_it_is_provided(tmp_path: Path):
    assert find_tokenizer(ModelConfig(), Path("/model")) == Path("/model")
    assert find_tokenizer(ModelConfig(tokenizer=str(tmp_path)), Path("/model")) == tmp_path


@pytest.mark.parametrize("name", ["./absent", "/absent", "~/absent", "a/b/c", "absent/"])
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(name: str):
    with pytest.raises(UsageError, match="--model: there is no directory or file"):
        find_model(ModelConfig(model=name))
    with pytest.raises(UsageError, match="--tokenizer: there is no directory or file"):
        find_tokenizer(ModelConfig(tokenizer=name), Path("/model"))


def test_a_pipe_is_no_model(tmp_path: Path):
    """Its other end may never be written."""
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(UsageError, match=r"--model: .*m\.gguf is neither a directory nor a file, but a pipe"):
        find_model(ModelConfig(model=str(tmp_path / "m.gguf")))
    with pytest.raises(BootError, match=r"m\.gguf: .*it is not a regular file"):
        find_model(ModelConfig(model=str(tmp_path), load_format="gguf"))


@pytest.mark.parametrize("name", ["./\udcff.gguf", "\udcff/model"])
def test_a_path_that_is_not_utf8_is_one_line(name: str):
    with pytest.raises(UsageError, match=r"--model: b'.*\\xff.*' is not UTF-8; rename it, or make a link"):
        find_model(ModelConfig(model=name))
    with pytest.raises(UsageError, match=r"--tokenizer: .* is not UTF-8"):
        find_tokenizer(ModelConfig(tokenizer=name), Path("/model"))


def test_a_file_in_a_directory_that_is_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    directory = tmp_path / "\udcff"
    directory.mkdir()
    monkeypatch.chdir(directory)
    write_model(directory / "m.gguf")
    with pytest.raises(UsageError, match="is not UTF-8"):
        find_model(ModelConfig(model="m.gguf"))


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in a directory of its own; the cache is next to it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "models").mkdir()
    return write_model(tmp_path / "models" / "Tiny-Q8_0.gguf")


def source_of(model: ModelConfig) -> Path:
    """Returns the file whose directory was found."""
    return (find_model(model) / "model.gguf").readlink()


def test_a_file_in_gguf_becomes_a_directory(gguf: Path):
    assert source_of(ModelConfig(model=str(gguf))) == gguf
    assert model_name(ModelConfig(model=str(gguf))) == "Tiny-Q8_0"
    blob = gguf.rename(gguf.with_name("sha256-0123"))  # as other programs keep their downloads
    assert source_of(ModelConfig(model=str(blob))) == blob
    assert source_of(ModelConfig(model=str(blob), load_format="dummy")) == blob


def test_a_directory_whose_weights_are_in_gguf(gguf: Path):
    directory = gguf.parent
    assert source_of(ModelConfig(model=str(directory))) == gguf
    assert model_name(ModelConfig(model=str(directory))) == str(directory)
    (directory / "config.json").write_text("{}")  # of the original, as in many repositories
    assert source_of(ModelConfig(model=str(directory))) == gguf
    other = write_model(directory / "Tiny-F16.gguf")
    with pytest.raises(BootError, match=r"choose one with --gguf-file: Tiny-F16\.gguf, Tiny-Q8_0\.gguf"):
        find_model(ModelConfig(model=str(directory)))
    assert source_of(ModelConfig(model=str(directory), gguf_file="Tiny-F16.gguf")) == other
    (directory / "model.safetensors").touch()
    assert find_model(ModelConfig(model=str(directory))) == directory
    assert source_of(ModelConfig(model=str(directory), gguf_file=gguf.name)) == gguf
    other.unlink()
    assert source_of(ModelConfig(model=str(directory), load_format="gguf")) == gguf


def test_the_directory_of_a_file_leads_to_itself(gguf: Path):
    directory = find_model(ModelConfig(model=str(gguf)))
    assert find_model(ModelConfig(model=str(directory))) == directory


def test_other_directories_need_no_tokenizer_of_the_file(gguf: Path, tmp_path: Path):
    (tmp_path / "tokenizer.json").touch()
    config = ModelConfig(model=str(gguf), tokenizer=str(tmp_path))
    names = {"config.json", "generation_config.json", "model.gguf", "source.json"}
    assert {file.name for file in find_model(config).iterdir()} == names
    assert find_tokenizer(config, Path("/model")) == tmp_path
    of_file = find_tokenizer(ModelConfig(tokenizer=str(gguf)), Path("/model"))
    assert {file.name for file in of_file.iterdir()} == {"tokenizer.json", "tokenizer_config.json", "source.json"}
    assert (find_draft_model(str(gguf), ModelConfig()) / "model.gguf").readlink() == gguf


def test_flags_that_do_not_fit_a_file(gguf: Path, tmp_path: Path):
    (tmp_path / "model.bin").write_bytes(b"weights")
    with pytest.raises(UsageError, match=r"--model: .*model\.bin is a file, but not in GGUF; give the directory"):
        find_model(ModelConfig(model=str(tmp_path / "model.bin")))
    with pytest.raises(UsageError, match=r"--load-format safetensors: .*Tiny-Q8_0\.gguf is in GGUF"):
        find_model(ModelConfig(model=str(gguf), load_format="safetensors"))
    with pytest.raises(UsageError, match=r"--gguf-file chooses among the files of a directory"):
        find_model(ModelConfig(model=str(gguf), gguf_file=gguf.name))
    with pytest.raises(UsageError, match="--gguf-file: of which --model"):
        find_model(ModelConfig(gguf_file=gguf.name))
    with pytest.raises(BootError, match=r"has no model in GGUF"):
        find_model(ModelConfig(model=str(tmp_path), load_format="gguf"))
    with pytest.raises(BootError, match=r"has no file other\.gguf; it has Tiny-Q8_0\.gguf"):
        find_model(ModelConfig(model=str(gguf.parent), gguf_file="other.gguf"))


def test_a_hub_name_is_looked_up_by_a_process_whose_message_is_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BootError, match=r"(?s)cannot find the model 'owner/tiny'.*HF_HUB_OFFLINE is set"):
        find_model(ModelConfig(model="owner/tiny"))
    snapshot = tmp_path / "hub" / "models--owner--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    with pytest.raises(BootError, match="it has no complete copy"):
        find_model(ModelConfig(model="owner/tiny"))
    reported, written = os.pipe()
    console = Console(written)
    console.is_json = True
    assert find_model(ModelConfig(model="owner/tiny", load_format="dummy"), console) == snapshot
    os.close(written)
    with os.fdopen(reported, encoding="utf-8") as lines:
        messages = [json.loads(line)["message"] for line in lines]
    assert messages[0].startswith("fetching owner/tiny")
    assert "cannot be reached; using the copy" in messages[-1]


def test_the_name_for_clients_is_what_was_typed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor.model.lookup, "CHAT_MODEL", BUNDLED_MODEL / "absent.gguf")
    assert model_name(ModelConfig()) == BUNDLED_MODEL.name
    assert model_name(ModelConfig(model="owner/tiny")) == "owner/tiny"
    assert model_name(ModelConfig(model="models/tiny/")) == "models/tiny"
