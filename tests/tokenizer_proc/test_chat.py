import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from messages.errors import RequestError
from messages.ring.requests import ChatPrompt
from runtime.chat_files import PLAIN_TEMPLATE, ChatFiles, read_chat_files
from tests.tokenizer_proc.parts import chat, templates_of, user
from tests.tokenizer_proc.real_templates import ALL, LLAMA_2, ONLY_PARTS, PARTS, QWEN_3, ZEPHYR
from tokenizer_proc.chat import ChatTemplates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
REFERENCE = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")), **TOKENS)
CONVERSATION = (
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "  Héllo\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello! "},
    {"role": "user", "content": "{{ 1 + 1 }} '日本' \"😀\""},
)


def reference_text(template: str, messages: list[dict[str, Any]], **fields: Any) -> str:
    return REFERENCE.apply_chat_template(messages, chat_template=template, tokenize=False, **fields)


def refusal_of(template: str, prompt: ChatPrompt) -> str:
    with pytest.raises(RequestError) as raised:
        templates_of(template, **TOKENS).render(prompt)
    assert raised.value.info.status == 400
    assert raised.value.info.param == "messages"
    return str(raised.value)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("messages", [CONVERSATION, CONVERSATION[1:], CONVERSATION[1:2]])
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_texts_are_those_of_transformers(name: str, messages: tuple[Any, ...], add_generation_prompt: bool) -> None:
    text = templates_of(ALL[name], **TOKENS).render(chat(*messages, add_generation_prompt=add_generation_prompt))
    assert text == reference_text(ALL[name], list(messages), add_generation_prompt=add_generation_prompt)
    assert "日本" in text or len(messages) == 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("end", ["", " ", "\n\n", " a "])
def test_a_message_to_continue_is_that_of_transformers(name: str, end: str) -> None:
    messages = [*CONVERSATION[1:], {"role": "assistant", "content": f"It is two{end}"}]
    text = templates_of(ALL[name], **TOKENS).render(chat(*messages, continue_final_message=True))
    assert text == reference_text(ALL[name], messages, continue_final_message=True)
    assert text.rstrip().endswith(f"It is two{end}".rstrip())


@settings(max_examples=50, deadline=None)
@given(contents=st.lists(st.text(max_size=12), min_size=1, max_size=5), name=st.sampled_from(sorted(ALL)))
def test_any_contents(contents: list[str], name: str) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    text = templates_of(ALL[name], **TOKENS).render(chat(*messages))
    assert text == reference_text(ALL[name], messages, add_generation_prompt=True)


@pytest.mark.shared
@pytest.mark.parametrize("messages", [CONVERSATION, CONVERSATION[1:]])
def test_the_template_of_a_real_model(messages: tuple[Any, ...], shared_dir: Path) -> None:
    folder = shared_dir / "tokenizers/qwen2"
    text = ChatTemplates(read_chat_files(str(folder))).render(chat(*messages))
    reference = AutoTokenizer.from_pretrained(folder)
    assert text == reference.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith("<|im_start|>assistant\n")


def test_variables_of_the_request() -> None:
    prompt = chat(user(), template_kwargs={"enable_thinking": False, "messages": [], "eos_token": "!"})
    assert templates_of(QWEN_3).render(prompt).endswith("assistant\n<think>\n\n</think>\n\n")
    assert templates_of("{{ messages[0].content }}{{ eos_token }}", **TOKENS).render(prompt) == "Hi!"
    assert (
        templates_of("{{ tools is none }}{{ documents is none }}{{ x is defined }}").render(prompt) == "TrueTrueFalse"
    )


def test_tools_choose_the_template_for_them() -> None:
    files = ChatFiles({"default": "plain", "tool_use": "{{ tools | tojson }}"}, {})
    assert ChatTemplates(files).render(chat(user())) == "plain"
    tools = [{"name": "é<>"}]
    assert ChatTemplates(files).render(chat(user(), template_kwargs={"tools": tools})) == '[{"name": "é<>"}]'


def test_a_model_without_a_template() -> None:
    assert templates_of(PLAIN_TEMPLATE).render(chat(*CONVERSATION[:2])) == (
        "system: Be brief & <kind>.\nuser:   Héllo\n\nassistant:"
    )
    to_continue = [user(), {"role": "assistant", "content": "Good"}]
    assert templates_of(PLAIN_TEMPLATE).render(chat(*to_continue, continue_final_message=True)) == (
        "user: Hi\nassistant: Good"
    )


PARTS_OF_HI = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]


@pytest.mark.parametrize(
    ("template", "content", "text"),
    [
        (ZEPHYR, PARTS_OF_HI, "<|user|>\nHi\nyou</s>\n"),
        (PARTS, PARTS_OF_HI, "<|user|>Hiyou<|end|>\n"),
        (PARTS, "Hi", "<|user|>Hi<|end|>\n"),
        (ONLY_PARTS, PARTS_OF_HI, "user:[Hi][you]\n"),
        (ONLY_PARTS, "Hi", "user:[Hi]\n"),
        ("{% set c = messages[0].content %}{% for x in c[:1] %}{{ x.text }}{% endfor %}", PARTS_OF_HI, "Hi"),
        ("{{ messages[0].content }}", "Hi", "Hi"),
    ],
)
def test_content_comes_in_the_form_that_the_template_reads(template: str, content: Any, text: str) -> None:
    assert templates_of(template, **TOKENS).render(chat(user(content), add_generation_prompt=False)) == text


def test_the_last_part_is_continued() -> None:
    messages = [user(), {"role": "assistant", "content": PARTS_OF_HI}]
    text = templates_of(PARTS, **TOKENS).render(chat(*messages, continue_final_message=True))
    assert text == "<|user|>Hi<|end|>\n<|assistant|>Hiyou"
    assert text == reference_text(PARTS, messages, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (LLAMA_2, [user(), user()], "Roles must alternate user/assistant"),
        ("{{ nothing.at.all }}", [user()], "'nothing' is undefined"),
        ("{% for x in %}", [user()], "Expected an expression"),
        ("{{ 'a' + 1 }}", [user()], "TypeError"),
        ("{{ messages[0].content.x.y }}", [user()], "has no attribute 'x'"),
        ("{% include 'x' %}", [user()], "no loader"),
        (PLAIN_TEMPLATE, [], "empty"),
    ],
)
def test_refusals_report_why(template: str, messages: list[dict[str, Any]], words: str) -> None:
    assert words in refusal_of(template, chat(*messages))


@pytest.mark.parametrize(
    ("template", "last", "words"),
    [
        (PLAIN_TEMPLATE, {"role": "assistant"}, "no text"),
        (PARTS, {"role": "assistant", "content": [{"type": "image"}]}, "no text"),
        ("{{ messages[0].content }}", {"role": "assistant", "content": "x"}, "cannot be continued"),
    ],
)
def test_what_cannot_be_continued(template: str, last: dict[str, Any], words: str) -> None:
    assert words in refusal_of(template, chat(user(), last, continue_final_message=True))


def test_messages_that_are_no_json_list() -> None:
    for messages in (b"{", b'{"role": "user"}', b'["user"]', b'[{"content": ' + b"[" * 9999):
        assert "cannot be read" in refusal_of(PLAIN_TEMPLATE, ChatPrompt(messages))
    with pytest.raises(RequestError) as raised:
        templates_of().render(ChatPrompt(json.dumps([user()]).encode(), template_kwargs=b"[]"))
    assert raised.value.info.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "source", ["{% for a in b %}" * 30 + "{% endfor %}" * 30, "{{ " + "(" * 5000, "{{ 1" + " + 1" * 9999 + " }}"]
)
def test_a_template_that_cannot_be_compiled(source: str) -> None:
    templates = ChatTemplates(ChatFiles({"default": source}, {}))
    assert templates.mistake is not None
    with pytest.raises(RequestError):
        templates.render(chat(user()))


def test_a_broken_template_stops_only_the_chats_that_need_it() -> None:
    templates = ChatTemplates(ChatFiles({"default": "ok", "tool_use": "{% if %}"}, {}))
    assert templates.mistake is None
    assert templates.render(chat(user())) == "ok"
    with pytest.raises(RequestError, match="Expected an expression"):
        templates.render(chat(user(), template_kwargs={"tools": []}))
    assert "Expected an expression" in str(ChatTemplates(ChatFiles({"default": "{% if %}"}, {})).mistake)
