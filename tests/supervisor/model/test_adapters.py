"""`--lora`: the table with which a server begins, and flags that name no adapter."""

from pathlib import Path

import pytest

from messages.config.server import ModelConfig, ModelFacts
from messages.errors import UsageError
from messages.ring.adapters import Adapter
from runtime.adapter_files import read_digest
from runtime.adapter_table import read_table
from supervisor.model.adapters import add_adapters
from tests.runtime.test_adapter_files import save

FACTS = ModelFacts(model_dir="", tokenizer_dir="", served_names=("m",), vocab_size=8, max_model_len=8)


def test_the_table_has_the_adapters_of_the_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path / "poems")
    monkeypatch.chdir(tmp_path)
    model = ModelConfig(lora=(f"poems={path}", "also=poems"))
    facts = add_adapters(FACTS, model, tmp_path)
    digest = read_digest(path)
    assert read_table(facts.adapter_table) == {
        "poems": Adapter("poems", path, digest),
        "also": Adapter("also", path, digest),
    }
    assert model.num_lora_slots == 2
    assert read_table(add_adapters(FACTS, ModelConfig(max_loras=3), tmp_path).adapter_table) == {}
    assert add_adapters(FACTS, ModelConfig(), tmp_path) is FACTS


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("poems",), "'poems' is not NAME=DIR"),
        (("=poems",), "is not NAME=DIR"),
        (("poems=",), "is not NAME=DIR"),
        (("m={0}",), "two models would have the name 'm'"),
        (("a={0}", "a={0}"), "two models would have the name 'a'"),
        (("a=/nowhere",), "--lora a: there is no directory /nowhere"),
    ],
)
def test_flags_that_name_no_adapter_are_refused(tmp_path: Path, flags: tuple[str, ...], words: str):
    path = save(tmp_path / "poems")
    with pytest.raises(UsageError, match=words):
        add_adapters(FACTS, ModelConfig(lora=tuple(flag.format(path) for flag in flags)), tmp_path)
