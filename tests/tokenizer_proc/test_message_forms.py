"""Chats of clients in forms that a template does not support: each template here supports a different one."""

from typing import Any

import pytest

from tests.tokenizer_proc.parts import chat, templates_of, user
from tokenizer_proc.message_forms import MessageForms

BY_ROLE = """\
{%- for message in messages %}
{%- if message.role == 'user' %}[INST]
{%- for block in message.content %}{% if block.type == 'text' %}{{ block.text }}{% endif %}{% endfor %}[/INST]
{%- elif message.role == 'tool' %}{{ '[RESULT]' + message.content }}
{%- else %}{{ '<' + message.role + '>' + message.content + '</s>' }}
{%- endif %}
{%- endfor %}"""
"""The user's content is a list of parts, the content of other roles is text."""

DUMPS = (
    "{% for message in messages %}{% if message.content is string %}{{ message.role }}:{{ message.content }};"
    "{% else %}{{ message.role }}:{{ message.content | tojson }};{% endif %}{% endfor %}"
)

JSON_ARGUMENTS = """\
{%- for message in messages %}
{%- if message.role == 'assistant' and message.content is none %}
{%- for call in message.tool_calls %}{{ call.function.name + '\n```' + call.function.arguments + '```' }}{% endfor %}
{%- else %}{{ message.role + ':' + message.content + ';' }}
{%- endif %}
{%- endfor %}"""

OBJECT_ARGUMENTS = """\
{%- for message in messages %}{{ message.role + ':' + message.content + ';' }}
{%- for call in message.tool_calls or [] %}
{%- for name, value in call.function.arguments.items() %}<{{ name }}>{{ value }}</{{ name }}>{% endfor %}
{%- endfor %}
{%- endfor %}"""

SYSTEM_FIRST = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System must be first') }}{% endif %}
{{- message.role + ':' + message.content + ';' }}
{%- endfor %}"""

SYSTEMS_FIRST = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first and messages[loop.index0 - 1].role != 'system' %}
{{- raise_exception('System must be first') }}
{%- endif %}
{{- message.role + ':' + message.content + ';' }}
{%- endfor %}"""

LAST_SYSTEM = """\
{%- set ns = namespace(system='') %}
{%- for message in messages if message.role == 'system' %}{% set ns.system = message.content %}{% endfor %}
{{- 'system:' + ns.system + ';' }}
{%- for message in messages if message.role != 'system' %}
{{- message.role + ':' + message.content + ';' }}
{%- endfor %}"""

NO_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{{- message.role + ':' + message.content + ';' }}
{%- endfor %}"""

TOOLS_IN_SYSTEM = """\
{%- for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}
{%- if message['role'] == 'system' and message['tools'] %}{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}{% endif %}
{{- '<|end|>' }}
{%- endfor %}"""

ANY_SYSTEM = "{% for message in messages %}{{ message.role + ':' + message.content + ';' }}{% endfor %}"

ONE_CALL = """\
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception('Cannot pass both') }}{% endif %}
{{- 'thought:' + (message.content or message.thinking or '') + ';' }}
{{- 'call:' + message.tool_calls[0].function.arguments | tojson + ';' }}
{%- else %}{{ message.role + ':' + message.content + ';' }}
{%- endif %}
{%- endfor %}"""
"""A message has one call and one thought, as in gpt-oss."""


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


CALL: dict[str, Any] = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": {"city": "Zürich"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


@pytest.mark.parametrize("form", ["text", "parts"])
def test_each_role_has_its_own_form(form: str) -> None:
    """If all contents became parts, as the loop over one suggests, the others could not be concatenated as text."""
    messages = [system("Be brief"), user("Hi"), assistant("Hello"), user("Bye")]
    if form == "parts":
        messages = [message | {"content": parts(message["content"])} for message in messages]
    text = templates_of(BY_ROLE).render(chat(*messages))
    assert text == "<system>Be brief</s>[INST]Hi[/INST]<assistant>Hello</s>[INST]Bye[/INST]"


def test_parts_are_not_dumped() -> None:
    messages = [user(parts("a", "b")), CALL, RESULT | {"content": parts("c")}]
    assert templates_of(DUMPS).render(chat(*messages)) == "user:a\nb;assistant:;tool:c;"


def test_other_roles_are_read_as_the_user_is() -> None:
    messages = [user("a"), {"role": "critic", "content": parts("b", "c")}]
    assert templates_of(ANY_SYSTEM).render(chat(*messages)) == "user:a;critic:b\nc;"


def test_arguments_are_json_text_for_a_template_that_adds_them_to_text() -> None:
    text = templates_of(JSON_ARGUMENTS).render(chat(user("a"), CALL, RESULT))
    assert text == 'user:a;f\n```{"city": "Zürich"}```tool:sunny;'


def test_arguments_stay_objects_for_a_template_that_loops_over_them() -> None:
    text = templates_of(OBJECT_ARGUMENTS).render(chat(user("a"), CALL, RESULT))
    assert text == "user:a;assistant:;<city>Zürich</city>tool:sunny;"


def call(call_id: str, city: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": {"city": city}}}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_calls_are_messages_with_their_results_for_a_template_that_shows_one() -> None:
    calls = assistant("Two") | {"tool_calls": [call("a", "Rom"), call("b", "Ulm")]}
    messages = [user("?"), calls, result("b", "rain"), result("a", "sun"), user("And?"), result("x", "lost")]
    text = templates_of(ONE_CALL).render(chat(*messages))
    calls_and_results = 'thought:Two;call:{"city": "Rom"};tool:sun;thought:;call:{"city": "Ulm"};tool:rain;'
    assert text == f"user:?;{calls_and_results}user:And?;tool:lost;"
    both = templates_of(OBJECT_ARGUMENTS).render(chat(*messages[:4]))
    assert both == "user:?;assistant:Two;<city>Rom</city><city>Ulm</city>tool:rain;tool:sun;"


def test_reasoning_and_a_text_before_a_call_are_one_for_a_template_that_shows_one() -> None:
    message = assistant("I look.") | {"reasoning_content": "Hm.", "tool_calls": [call("a", "Rom")]}
    text = templates_of(ONE_CALL).render(chat(user("?"), message, result("a", "sun")))
    assert text == 'user:?;thought:Hm.\n\nI look.;call:{"city": "Rom"};tool:sun;'
    other = templates_of(OBJECT_ARGUMENTS).render(chat(user("?"), message))
    assert other == "user:?;assistant:I look.;<city>Rom</city>"


@pytest.mark.parametrize("template", [SYSTEM_FIRST, LAST_SYSTEM])
def test_system_messages_are_one_for_a_template_that_reads_one(template: str) -> None:
    for messages in (
        [system("a"), system(parts("b", "c")), user("d"), assistant("e"), user("f")],
        [system("a"), user("d"), assistant("e"), system("b\nc"), user("f")],
        [user("d"), system("a"), assistant("e"), user("f"), system("b\nc")],
    ):
        text = templates_of(template).render(chat(*messages))
        assert text == "system:a\n\nb\nc;user:d;assistant:e;user:f;"


def test_system_messages_stay_several_at_the_beginning_if_a_template_reads_them_there() -> None:
    messages = [system("a"), system("b"), user("c")]
    assert templates_of(SYSTEMS_FIRST).render(chat(*messages)) == "system:a;system:b;user:c;"
    messages = [system("a"), user("b"), assistant("c"), system("d"), user("e")]
    assert templates_of(SYSTEMS_FIRST).render(chat(*messages)) == "system:a;system:d;user:b;assistant:c;user:e;"


def test_the_user_reports_it_to_a_template_that_reads_no_system_message() -> None:
    messages = [system("a"), user("b"), assistant("c"), system("d"), user("e")]
    assert templates_of(NO_SYSTEM).render(chat(*messages)) == "user:a\n\nd\n\nb;assistant:c;user:e;"
    with_parts = [system(parts("a")), user(parts("b", "c"))]
    assert templates_of(NO_SYSTEM).render(chat(*with_parts)) == "user:a\n\nb\nc;"


def test_system_messages_stay_where_a_template_reads_them() -> None:
    messages = [system("a"), system("b"), user("c"), assistant("d"), system("e"), user("f")]
    text = templates_of(ANY_SYSTEM).render(chat(*messages))
    assert text == "system:a;system:b;user:c;assistant:d;system:e;user:f;"


@pytest.mark.parametrize(
    ("template", "tool", "text"),
    [
        ("{{ tools[0].function.parameters.properties | length }}", {"name": "f"}, "0"),
        ("{{ tools[0].function.parameters.properties | length }}", {"name": "f", "parameters": None}, "0"),
        ("{{ '[' + tools[0].function.description + ']' }}", {"name": "f"}, "[]"),
        ("{{ tools[0] | tojson }}", {"name": "f"}, '{"type": "function", "function": {"name": "f"}}'),
    ],
)
def test_a_tool_without_parameters_is_one_without_arguments(template: str, tool: dict[str, Any], text: str) -> None:
    """A template that can read a tool unchanged gets it unchanged."""
    tools = [{"type": "function", "function": tool}]
    assert templates_of(template).render(chat(user(), template_kwargs={"tools": tools})) == text


def test_each_form_is_looked_for_once() -> None:
    rendered: list[Any] = []

    def render(messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
        rendered.append(messages)
        return "".join(f"{message['content']}" for message in messages)

    forms = MessageForms(render)
    messages = [user("a"), *[{"role": f"role{i}", "content": parts("b")} for i in range(100)], user("a")]
    forms.adapt(messages)
    num_rendered = len(rendered)
    forms.adapt(messages)
    assert len(rendered) == num_rendered < 10


def test_tools_are_a_text_in_the_system_message_if_the_template_shows_them_only_there():
    tool = {"type": "function", "function": {"name": "now", "description": "die Zeit in Zürich"}}
    templates = templates_of(TOOLS_IN_SYSTEM)
    shown = '<|tool|>[{"name": "now", "description": "die Zeit in Zürich"}]<|/tool|><|end|><|user|>Hi<|end|>'
    provided = {"tools": [tool]}
    assert (
        templates.render(chat(system("Be brief."), user(), template_kwargs=provided)) == f"<|system|>Be brief.{shown}"
    )
    reported = "You are a helpful assistant with some tools."
    assert templates.render(chat(user(), template_kwargs=provided)) == f"<|system|>{reported}{shown}"
    assert templates.render(chat(user(), template_kwargs={"tools": []})) == "<|user|>Hi<|end|>"
    assert templates.render(chat(user(), template_kwargs={"tools": "none"})) == "<|user|>Hi<|end|>"
    both = TOOLS_IN_SYSTEM + "{{ tools[0].function.name }}"
    assert templates_of(both).render(chat(user(), template_kwargs=provided)) == "<|user|>Hi<|end|>now"


@pytest.mark.parametrize("condition", ["xml_tools", "xml_tools is defined"])
def test_tools_have_another_name_in_templates_like_smollm3s(condition: str):
    template = f"{{% if {condition} %}}{{% for tool in xml_tools %}}[{{{{ tool.name }}}}]{{% endfor %}}{{% endif %}}"
    tools = [{"type": "function", "function": {"name": "now"}}, {"name": "later"}]
    templates = templates_of(template + "{{ messages[0].content }}")
    assert templates.render(chat(user(), template_kwargs={"tools": tools})) == "[now][later]Hi"
    assert templates.render(chat(user(), template_kwargs={"tools": tools, "xml_tools": [{"name": "own"}]})) == "[own]Hi"
    assert templates.render(chat(user())) == "Hi"
    both = templates_of(template + "{{ tools | length }}")
    assert both.render(chat(user(), template_kwargs={"tools": tools})) == "2"


def test_a_message_with_calls_stays_one_if_the_template_shows_no_calls() -> None:
    calls = [{"id": f"call0000{i}", "type": "function", "function": {"name": "f", "arguments": {}}} for i in range(2)]
    messages = [user("a"), assistant("b") | {"tool_calls": calls}, user("c")]
    assert templates_of(ANY_SYSTEM).render(chat(*messages)) == "user:a;assistant:b;user:c;"
