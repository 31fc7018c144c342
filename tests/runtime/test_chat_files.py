import json
from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from runtime.chat_files import PLAIN_TEMPLATE, read_chat_files


def write_config(folder: Path, **fields: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")


def test_a_model_without_files(tmp_path: Path) -> None:
    files = read_chat_files(str(tmp_path))
    assert (files.templates, files.special_tokens) == ({"default": PLAIN_TEMPLATE}, {})


def test_the_template_of_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path, chat_template="é")
    assert read_chat_files(str(tmp_path)).templates == {"default": "é"}


def test_a_template_in_the_file_of_a_processor_counts_if_there_is_no_other(tmp_path: Path) -> None:
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "p"}), encoding="utf-8")
    assert read_chat_files(str(tmp_path)).templates == {"default": "p"}
    write_config(tmp_path, chat_template="a")
    assert read_chat_files(str(tmp_path)).templates == {"default": "a"}


def test_several_templates_of_the_configuration(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}, 5]
    write_config(tmp_path, chat_template=named)
    assert read_chat_files(str(tmp_path)).templates == {"default": "a", "tool_use": "b"}


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path, chat_template="a", bos_token="<s>")
    (tmp_path / "chat_template.jinja").write_text("b", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("c", encoding="utf-8")
    files = read_chat_files(str(tmp_path))
    assert files.templates == {"default": "b", "tool_use": "c"}
    assert files.special_tokens == {"bos_token": "<s>"}


def test_the_operators_file_goes_before_all(tmp_path: Path) -> None:
    write_config(tmp_path, chat_template="a", eos_token="</s>")
    (tmp_path / "chat_template.jinja").write_text("b", encoding="utf-8")
    mine = tmp_path / "mine.jinja"
    mine.write_text("c", encoding="utf-8")
    files = read_chat_files(str(tmp_path), str(mine))
    assert (files.templates, files.special_tokens) == ({"default": "c"}, {"eos_token": "</s>"})
    with pytest.raises(BootError, match=r"none.jinja cannot be read"):
        read_chat_files(str(tmp_path), str(tmp_path / "none.jinja"))


def test_special_tokens_are_texts_or_objects_and_may_be_in_two_files(tmp_path: Path) -> None:
    tokens = {"bos_token": "<a>", "pad_token": {"content": "<p>"}, "additional_special_tokens": ["<x>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(tokens), encoding="utf-8")
    write_config(tmp_path, bos_token={"content": "<s>", "lstrip": False}, eos_token=None, add_bos_token=True)
    assert read_chat_files(str(tmp_path)).special_tokens == {"bos_token": "<s>", "pad_token": "<p>"}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_files_of_the_model_that_cannot_be_read_are_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert read_chat_files(str(tmp_path)).templates == {"default": PLAIN_TEMPLATE}
