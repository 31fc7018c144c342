"""Chats rendered with the templates of real models: the text is transformers', or the chat is refused as there."""

import json
import os
from pathlib import Path

import pytest

from messages.errors import RequestError
from messages.ring.requests import ChatPrompt
from runtime.chat_files import DEFAULT, ChatFiles
from tests.tokenizer_proc.golden.make_renderings import CHATS, GOLDEN, RENDERINGS, SPECIAL_TOKENS, by_transformers
from tokenizer_proc.chat import ChatTemplates, CompiledTemplate
from tokenizer_proc.template_sandbox import TemplateSandbox

LLAMA_CPP = "SLUICE_LLAMA_CPP"
"""Names the directory of llama.cpp's sources in the source package of llama-cpp-python 0.3.36 (vendor/llama.cpp)."""

EXPECTED: dict[str, dict[str, str]] = json.loads(RENDERINGS.read_text(encoding="utf-8"))
ALL, CALLS = {*CHATS}, {"call", "content and call", "calls", "thought and call"}
WITHOUT_TOOLS = {name for name, (_, variables) in CHATS.items() if "tools" not in variables}
REFUSED = {
    "CohereForAI-c4ai-command-r-plus-tool_use": ALL,  # its tools need a description of each parameter
    "Kimi-K2-Instruct": CALLS,  # it changes a list
    "Kimi-K2-Thinking": CALLS,
    "Mistral-Small-3.2-24B-Instruct-2506": {"calls"},  # no user message may follow a result
    "mistralai-Ministral-3-14B-Reasoning-2512": {"calls"},
    "mistralai-Mistral-Nemo-Instruct-2407": {"calls"},
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": WITHOUT_TOOLS,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": WITHOUT_TOOLS,
    "fireworks-ai-llama-3-firefunction-v2": ALL,  # its tools are a variable of another name
    "google-gemma-2-2b-it": CALLS,  # its roles alternate
    "llama-cpp-deepseek-r1": ALL - WITHOUT_TOOLS,  # it writes a generator as JSON
}
"""The chats that the templates refuse, with us and in transformers."""


def render(templates: ChatTemplates, name: str) -> str:
    messages, variables = CHATS[name]
    return templates.render(ChatPrompt(json.dumps(messages).encode(), template_kwargs=json.dumps(variables).encode()))


def templates_of(source: str) -> ChatTemplates:
    return ChatTemplates(ChatFiles({DEFAULT: source}, SPECIAL_TOKENS))


@pytest.mark.parametrize("template", EXPECTED)
def test_it_is_rendered_as_by_transformers(template: str):
    templates = templates_of((GOLDEN / f"{template}.jinja").read_text(encoding="utf-8"))
    for name, text in EXPECTED[template].items():
        assert render(templates, name) == text, name
    parts = render(templates, "parts")
    assert "PART" in parts
    assert "PIECE" in parts


def find_refused(source: str) -> set[str]:
    """Returns the chats that are refused, here and by transformers. The others have the same text."""
    refused: set[str] = set()
    templates, forms = templates_of(source), CompiledTemplate(TemplateSandbox(), source, SPECIAL_TOKENS).forms
    for name, (messages, variables) in CHATS.items():
        adapted = forms.adapt(messages, variables.get("tools"))
        try:
            text = render(templates, name)
        except RequestError:
            refused.add(name)
            with pytest.raises(Exception, match=r"."):
                by_transformers(source, adapted, variables)
        else:
            assert text == by_transformers(source, adapted, variables), name
    return refused


def test_all_templates_of_llama_cpp():
    pytest.importorskip("transformers.utils.chat_template_utils")
    if LLAMA_CPP not in os.environ:
        pytest.skip(f"{LLAMA_CPP} does not name a directory with llama.cpp's chat templates")
    files = sorted((Path(os.environ[LLAMA_CPP]) / "models" / "templates").glob("*.jinja"))
    refused = {file.stem: find_refused(file.read_text(encoding="utf-8")) for file in files}
    assert len(files) == 70
    assert {name: chats for name, chats in refused.items() if chats} == REFUSED
