import json
import os
from pathlib import Path

import pytest

import supervisor.model.lookup
from messages.config.server import ModelConfig
from messages.errors import BootError, UsageError
from supervisor.console import Console
from supervisor.model.lookup import BUNDLED_MODEL, find_model, find_tokenizer, model_name


def test_no_model_means_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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


def test_the_tokenizer_is_the_models_unless_it_is_given(tmp_path: Path):
    assert find_tokenizer(ModelConfig(), Path("/model")) == Path("/model")
    assert find_tokenizer(ModelConfig(tokenizer=str(tmp_path)), Path("/model")) == tmp_path


@pytest.mark.parametrize("name", ["./absent", "/absent", "~/absent", "a/b/c", "absent/"])
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(name: str):
    with pytest.raises(UsageError, match="--model: there is no directory"):
        find_model(ModelConfig(model=name))
    with pytest.raises(UsageError, match="--tokenizer: there is no directory"):
        find_tokenizer(ModelConfig(tokenizer=name), Path("/model"))


def test_a_file_is_no_model(tmp_path: Path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UsageError, match="is a file; give the directory"):
        find_model(ModelConfig(model=str(tmp_path / "model.gguf")))


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
    told, written = os.pipe()
    console = Console(written)
    console.is_json = True
    assert find_model(ModelConfig(model="owner/tiny", load_format="dummy"), console) == snapshot
    os.close(written)
    with os.fdopen(told, encoding="utf-8") as lines:
        messages = [json.loads(line)["message"] for line in lines]
    assert messages[0].startswith("fetching owner/tiny")
    assert "cannot be reached; using the copy" in messages[-1]


def test_the_name_for_clients_is_what_was_typed():
    assert model_name(ModelConfig()) == BUNDLED_MODEL.name
    assert model_name(ModelConfig(model="owner/tiny")) == "owner/tiny"
    assert model_name(ModelConfig(model="models/tiny/")) == "models/tiny"
