"""Tools for models whose chat template has no place for them, in each API, with a ring played by the test."""

from pathlib import Path

import msgspec
import pytest

from frontend.api.answers.chat_messages import ChatMessage
from frontend.api.answers.generic_tools import NUDGE, write_tools
from frontend.api.answers.tools import NamedChoice, check_tools, choose_tools, with_calls
from frontend.parsing.generic_format import GENERIC
from frontend.parsing.model_format import choose_format, load_model_format
from messages.ring.requests import Grammar
from tests.frontend.frontend_run import make_config
from tests.frontend.parsing.reading import read

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "the weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
FORMAT = choose_format(GENERIC, "none", "")


def test_a_template_without_tools_has_the_generic_format(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config = make_config()
    config = msgspec.structs.replace(config, facts=msgspec.structs.replace(config.facts, tokenizer_dir=str(tmp_path)))
    assert load_model_format(config).tool_calls is None, "a model without a chat template is no chat model"
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", "utf-8")
    with caplog.at_level("INFO", logger="sluice.frontend"):
        assert load_model_format(config).tool_calls == "generic"
    assert "tools and calls are written as text" in caplog.text
    none = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, tool_call_parser="none"))
    assert load_model_format(none).tool_calls is None
    (tmp_path / "chat_template.jinja").write_text("<tool_call>", "utf-8")
    assert load_model_format(config).tool_calls == "native"


def test_calls_and_results_become_texts():
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}
    provided = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="assistant", content="I look.", tool_calls=[call, {**call, "id": "c2"}]),
        ChatMessage(role="tool", tool_call_id="c1", content="sunny"),
        ChatMessage(role="tool", tool_call_id="c2", content="rainy"),
        ChatMessage(role="assistant", content="Mixed."),
        ChatMessage(role="tool", tool_call_id="?", content="late"),
        ChatMessage(role="user", content="Thanks."),
    ]
    written = write_tools(provided, TOOLS)
    assert [message.role for message in written] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert written[0].text.startswith('Be brief.\n\nYou have these tools:\n{"name": "get_weather"')
    line = '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
    assert written[2].text == f"I look.\n{line}\n{line}"
    assert written[3].text == (
        f"The tool get_weather answered:\nsunny\n\nThe tool get_weather answered:\nrainy\n\n{NUDGE}"
    )
    assert written[5].text == "The tool  answered:\nlate\n\nThanks."
    assert not any(message.tool_calls or message.tool_call_id for message in written)
    assert write_tools(provided[:2], []) == provided[:2]
    assert [message.role for message in write_tools(provided[1:2], TOOLS)] == ["system", "user"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_is_calls_or_a_text(is_streamed: bool):
    assert FORMAT.with_tools is not None
    line = '{"name": "get_weather", "arguments": {"city": "a\\n{\\"name\\""}}'
    schemas = {"get_weather": PARAMETERS, "now": {}}
    for text, calls in (
        (line, 1),
        (f'{line}\n{line}\n{{"name":"now","arguments":{{}}}}', 3),
        ('{\n  "name": "now",\n  "arguments": {}\n}', 1),
        ("It is sunny. " + line, 0),
        ("[1, 2]", 0),
    ):
        for cuts in ([], range(len(text))):
            got = read(FORMAT.with_tools, text, schemas, cuts=cuts, is_streamed=is_streamed)
            assert (len(got.calls), got.content) == (calls, "" if calls else text)


def test_the_grammar_that_each_choice_has():
    tools = check_tools(TOOLS)
    auto = choose_tools(tools, "auto", FORMAT, allows_several=True)
    assert auto.forced is None
    assert auto.offered is not None
    assert (auto.offered.kind, auto.offered.param) == ("lark", "tools")
    calls = auto.offered.calls
    assert calls is not None
    assert (calls.names, calls.separator) == (("get_weather", "now"), "\n")
    one = choose_tools(tools, "auto", FORMAT, allows_several=False).offered
    assert one is not None
    assert one.calls is not None
    assert one.calls.separator is None
    for choice in ("required", NamedChoice("now")):
        forced = choose_tools(tools, choice, FORMAT, allows_several=True)
        assert forced.offered is None
        assert forced.forced is not None
    assert choose_tools(tools, "none", FORMAT, allows_several=True).listed == []
    assert choose_tools(tools, "auto", choose_format("hermes", "none", ""), allows_several=True).offered is None
    assert with_calls(Grammar("json_schema", "{}", "response_format"), auto, FORMAT, allows_several=True).calls
