"""End tokens, sampling defaults and chat templates of a file in GGUF."""

from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from runtime.chat_files import read_chat_files
from runtime.gguf.gguf_file import read_gguf
from supervisor.model.gguf.generation import read_generation_config, write_chat_templates
from tests.gguf_files import write_gguf


def test_sampling_defaults():
    provided = {"temp": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.5, "mirostat": 2}
    assert read_generation_config({f"general.sampling.{key}": value for key, value in provided.items()}) == {
        "eos_token_id": [],
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.75,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
    }


@pytest.mark.parametrize(
    ("texts", "keys", "expected"),
    [
        (["a", "b"], {}, []),
        (["a", "</s>"], {"eos": 1}, [1]),
        (["<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "x"], {"eos": 3, "eot": 1}, [3, 1, 0, 2]),
        (["a", "b", "c"], {"eos": 2, "eot": 1, "eom": 0}, [2, 1, 0]),
        (["<|end|>", "<|return|>", "<|call|>"], {"eos": 1}, [1, 2]),
        (["<|end|>", "<|return|>"], {"eos": 1}, [1, 0]),
        ("no list", {"eos": 1}, [1]),
    ],
)
def test_end_tokens(texts: Any, keys: dict[str, int], expected: list[int]):
    metadata = {f"tokenizer.ggml.{key}_token_id": token_id for key, token_id in keys.items()}
    assert read_generation_config(metadata | {"tokenizer.ggml.tokens": texts})["eos_token_id"] == expected


def test_chat_templates_by_name(tmp_path: Path):
    templates = {
        "": "default {{ a }}",
        ".empty": " \n",
        ".tool_use": "tools\n",
        ".rag": "über",
        ".../../x": "no",
        ".t": 7,
    }
    metadata: dict[str, Any] = {f"tokenizer.chat_template{name}": text for name, text in templates.items()}
    write_chat_templates(metadata | {"tokenizer.chat_templates": ["tool_use", "rag"]}, tmp_path)
    expected = {"default": "default {{ a }}", "tool_use": "tools\n", "rag": "über"}
    assert read_chat_files(str(tmp_path)).templates == expected
    assert {file.name for file in tmp_path.rglob("*.jinja")} == {"chat_template.jinja", "tool_use.jinja", "rag.jinja"}


def test_only_the_values_of_templates_are_read(tmp_path: Path):
    """Any other text may be no UTF-8, and as long as the header."""
    path = write_gguf(tmp_path / "m.gguf", {b"\xff": 1, "other": b"\xff", "tokenizer.chat_template": "t"})  # type: ignore
    write_chat_templates(read_gguf(path).metadata, tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == "t"
    many = {f"tokenizer.chat_template.t{index}": "x" for index in range(65)}
    with pytest.raises(BootError, match="65 chat templates; the limit is 64"):
        write_chat_templates(many, tmp_path)


def test_an_empty_template_is_none(tmp_path: Path):
    write_chat_templates({"tokenizer.chat_template": ""}, tmp_path)
    assert not read_chat_files(str(tmp_path)).has_template
