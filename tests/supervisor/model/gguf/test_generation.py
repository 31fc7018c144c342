"""End tokens, sampling defaults and chat templates of a file in GGUF."""

from pathlib import Path
from typing import Any

import pytest

from runtime.chat_files import read_chat_files
from supervisor.model.gguf.generation import read_generation_config, write_chat_templates


def test_sampling_defaults():
    given = {"temp": 0.5, "top_k": 20, "top_p": 0.75, "min_p": 0.25, "penalty_repeat": 1.5, "mirostat": 2}
    assert read_generation_config({f"general.sampling.{key}": value for key, value in given.items()}) == {
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
    templates = {"": "default {{ a }}", ".tool_use": "tools\n", ".rag": "über", ".../../x": "no", ".t": 7}
    metadata: dict[str, Any] = {f"tokenizer.chat_template{name}": text for name, text in templates.items()}
    write_chat_templates(metadata | {"tokenizer.chat_templates": ["tool_use", "rag"]}, tmp_path)
    expected = {"default": "default {{ a }}", "tool_use": "tools\n", "rag": "über"}
    assert read_chat_files(str(tmp_path)).templates == expected
    assert {file.name for file in tmp_path.rglob("*.jinja")} == {"chat_template.jinja", "tool_use.jinja", "rag.jinja"}
