"""The format of a model's answers: from the flags, its chat template, or its response template."""

import json
import typing
from pathlib import Path

import msgspec
import pytest

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, find_format
from frontend.parsing.model_format import AUTO, NONE, choose_format, load_model_format
from messages.config.server import ModelConfig
from tests.frontend.frontend_run import make_config

HERMES = "{{ '<tool_call>\\n{\"name\": ' }}"
CHAT_TEMPLATES = [
    ("Qwen2.5", HERMES + "<|im_start|>", "hermes", None),
    ("Qwen3", HERMES + "{% if enable_thinking is false %}<think>\n\n</think>", "hermes", "qwen3"),
    ("Qwen3-Coder", HERMES + "<function=example>", "qwen3_coder", None),
    ("DeepSeek-R1", "{{ content.split('</think>')[-1] }}<｜Assistant｜><think>\n", None, "deepseek_r1"),
    ("Llama 3.1", '{"name": function name, "parameters": dictionary of …}<|python_tag|>', "llama3_json", None),
    ("Llama 4", "<|python_start|>[func_name1(params_name1=params_value1)]", "pythonic", None),
    ("Mistral", "[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral", None),
    ("Magistral", "[TOOL_CALLS][THINK]", "mistral", "mistral"),
    ("gpt-oss", "<|channel|>analysis<|message|> to=functions.", "openai", "openai_gptoss"),
    ("plain", "{% for message in messages %}{{ message.content }}{% endfor %}", None, None),
]


@pytest.mark.parametrize(("name", "chat_template", "tools", "reasoning"), CHAT_TEMPLATES)
def test_the_chat_template_reports(name: str, chat_template: str, tools: str | None, reasoning: str | None):
    assert (find_format(TOOL_FORMATS, chat_template), find_format(REASONING_FORMATS, chat_template)) == (
        tools,
        reasoning,
    )
    chosen = choose_format(AUTO, AUTO, chat_template)
    assert (chosen.has_calls, chosen.without_tools is not None) == (tools is not None, reasoning is not None)


def test_every_flag_value_is_a_format():
    hints = typing.get_type_hints(ModelConfig)
    assert set(typing.get_args(hints["tool_call_parser"])) == {AUTO, NONE, *TOOL_FORMATS}
    assert set(typing.get_args(hints["reasoning_parser"])) == {AUTO, NONE, *REASONING_FORMATS}
    for name in TOOL_FORMATS:
        assert choose_format(name, NONE, "").has_calls
    for name in REASONING_FORMATS:
        assert choose_format(NONE, name, "").without_tools is not None


def test_special_tokens_are_requested_where_they_are_marks():
    chosen = choose_format("mistral", "deepseek_r1", "")
    assert chosen.with_tools is not None
    assert chosen.without_tools is not None
    assert (chosen.with_tools.needs_special_tokens, chosen.without_tools.needs_special_tokens) == (True, False)


def test_ids_of_calls():
    ids = {choose_format("hermes", NONE, "").new_call_id("now", 0) for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)
    short = choose_format("mistral", NONE, "").new_call_id("now", 0)
    assert (len(short), short.isalnum()) == (9, True)
    assert choose_format("kimi_k2", NONE, "").new_call_id("now", 3) == "functions.now:3"


def test_it_is_read_from_the_tokenizers_directory(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text(HERMES, encoding="utf-8")
    config = make_config()
    config = msgspec.structs.replace(config, facts=msgspec.structs.replace(config.facts, tokenizer_dir=str(tmp_path)))
    assert load_model_format(config).has_calls
    own = {"start_anchor": "A:", "fields": {"content": {}, "reasoning_content": {"open": "<", "close": ">"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": own}), encoding="utf-8")
    chosen = load_model_format(config)
    assert (chosen.has_calls, chosen.without_tools is not None) == (False, True)
