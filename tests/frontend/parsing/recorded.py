"""Answers as models of each format write them, with their expected contents."""

from typing import Any, NamedTuple

PARIS = '{"city": "Paris", "days": 2}'


class Recorded(NamedTuple):
    """`calls` are names with arguments. `prompt_end`: the end of the prompt, with the beginning of the answer."""

    name: str
    tool_call_parser: str
    reasoning_parser: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    prompt_end: str = ""


TOOLS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "string"}},
        },
    },
    "now": {"type": "object", "properties": {}},
}

ODD = {"city": 'Zürich "10%" \\ 😀 \n { [ ] } </b>', "exact": None, "places": [{"a": [1.5, -2e3]}, []]}
ODD_JSON = (
    '{"city": "Z\\u00fcrich \\"10%\\" \\\\ \\ud83d\\ude00 \\n { [ ] } </b>",'
    ' "exact": null, "places": [{"a": [1.5, -2e3]}, []]}'
)

NO_CALLS = '[{"name": "now", "description": "the time", "parameters": {}}, {"name": "Ada", "arguments": {}}]'

RECORDED = [
    Recorded("plain text", "hermes", "qwen3", "Hello, {world} <b>!\n", "Hello, {world} <b>!\n"),
    Recorded("no text", "hermes", "qwen3", ""),
    Recorded(
        "Qwen3: thought, then a call",
        *("hermes", "qwen3"),
        "<think>\nThe user wants\nthe weather.\n</think>\n\n<tool_call>\n"
        f'{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        reasoning="The user wants\nthe weather.",
        calls=(("get_weather", {"city": "Paris", "days": 2}),),
    ),
    Recorded(
        "Qwen2.5: text and parallel calls",
        *("hermes", "none"),
        f'I will look.\n\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n<tool_call>\n'
        '{"name": "now", "arguments": {}}\n</tool_call><|im_end|>',
        content="I will look.",
        calls=(("get_weather", {"city": "Paris", "days": 2}), ("now", {})),
    ),
    Recorded(
        "Hermes: escapes and other alphabets",
        *("hermes", "none"),
        f'<tool_call>{{"arguments": {ODD_JSON}, "name": "get_weather"}}</tool_call>',
        calls=(("get_weather", ODD),),
    ),
    Recorded(
        "Qwen3: the prompt has opened the thought",
        *("hermes", "qwen3"),
        "So it is.\n</think>\n\nIt is sunny.",
        content="It is sunny.",
        reasoning="So it is.",
        prompt_end="<think> is a tag.<|im_end|>\n<|im_start|>assistant\n<think>\n",
    ),
    Recorded(
        "Qwen3: the prompt has closed the thought",
        *("hermes", "qwen3"),
        "It is sunny.",
        content="It is sunny.",
        prompt_end="<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    Recorded(
        "DeepSeek-R1",
        *("none", "deepseek_r1"),
        "<think>\n2 < 3, so 😀\n</think>\n\n**Yes**",
        content="**Yes**",
        reasoning="2 < 3, so 😀",
        prompt_end="<｜Assistant｜>",
    ),
    Recorded(
        "Qwen3-Coder",
        *("qwen3_coder", "none"),
        "Sure.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew <York>\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=places>\n["a"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n'
        "</function>\n</tool_call>",
        content="Sure.",
        calls=(("get_weather", {"city": "New <York>", "days": 3, "places": ["a"]}), ("now", {})),
    ),
    Recorded(
        "Qwen3-Coder: no opener, then no closer",
        *("qwen3_coder", "none"),
        "Sure.\n\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>\n"
        "<function=now>\n</function>\n<tool_call>\n<function=now>\n</function>",
        content="Sure.",
        calls=(("get_weather", {"city": "Rome"}), ("now", {}), ("now", {})),
    ),
    Recorded(
        "Qwen3-Coder: a tag that is no tool",
        *("qwen3_coder", "none"),
        "<function=other>\n<parameter=city>\nRome\n</parameter>\n</function>",
        content="<function=other>\n<parameter=city>\nRome\n</parameter>\n</function>",
    ),
    Recorded(
        "Qwen2.5-Coder: a call in a fence",
        *("hermes", "none"),
        'Let me look.\n\n```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": "``` </tools> {"\n  }\n}\n'
        "```\nOne moment.",
        content="Let me look.\nOne moment.",
        calls=(("get_weather", {"city": "``` </tools> {"}),),
    ),
    Recorded(
        "Qwen2.5-Coder: a bare call",
        *("hermes", "none"),
        f'{{"name": "get_weather", "arguments": {PARIS}}}\n{{"name": "now", "arguments": {{}}}}',
        calls=(("get_weather", {"city": "Paris", "days": 2}), ("now", {})),
    ),
    Recorded(
        "Qwen2.5-Coder: a list in tags of its own",
        *("hermes", "none"),
        f'<tools>\n[{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]\n</tools>',
        calls=(("get_weather", {"city": "Paris", "days": 2}), ("now", {})),
    ),
    Recorded(
        "Qwen2.5-Coder: JSON that is no call",
        *("hermes", "none"),
        f"```json\n{NO_CALLS}\n```",
        content=f"```json\n{NO_CALLS}\n```",
    ),
    Recorded(
        "Hermes: the closing mark in a string",
        *("hermes", "none"),
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a</tool_call>\\"b</tool_call>"}}</tool_call> So.',
        content="So.",
        calls=(("get_weather", {"city": 'a</tool_call>"b</tool_call>'}),),
    ),
    Recorded(
        "gpt-oss: the closing mark in a string",
        *("openai", "none"),
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "a<|call|>b"}<|call|>',
        calls=(("get_weather", {"city": "a<|call|>b"}),),
    ),
    Recorded(
        "Mistral, later: the closing mark in a string",
        *("mistral", "none"),
        '[TOOL_CALLS]get_weather[ARGS]{"city": "a[TOOL_CALLS]b</s>"}[TOOL_CALLS]now[ARGS]{}',
        calls=(("get_weather", {"city": "a[TOOL_CALLS]b</s>"}), ("now", {})),
    ),
    Recorded(
        "Llama 4: the closing mark in a string",
        *("pythonic", "none"),
        "<|python_start|>[get_weather(city='a<|python_end|>b')]<|python_end|>",
        calls=(("get_weather", {"city": "a<|python_end|>b"}),),
    ),
    Recorded(
        "Hermes: line ends in a string",
        *("hermes", "none"),
        '<tool_call>{"name": "get_weather", "arguments": {"city": "a\n\tb"}}</tool_call>',
        calls=(("get_weather", {"city": "a\n\tb"}),),
    ),
    Recorded(
        "Llama 3.1: one call",
        *("llama3_json", "none"),
        f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}',
        calls=(("get_weather", {"city": "Paris", "days": 2}),),
    ),
    Recorded(
        "Llama 3.2: several calls",
        *("llama3_json", "none"),
        f'{{"type": "function", "name": "get_weather", "parameters": {ODD_JSON}}}; '
        '{"name": "now", "parameters": {}}',
        calls=(("get_weather", ODD), ("now", {})),
    ),
    Recorded(
        "Llama 3: JSON that is no call",
        *("llama3_json", "none"),
        '{"name": "Ada", "parameters": {"age": 5}}\n{"name": "now"}',
        content='{"name": "Ada", "parameters": {"age": 5}}\n{"name": "now"}',
    ),
    Recorded(
        "DeepSeek-R1-Distill-Llama: a call after the thought",
        *("llama3_json", "deepseek_r1"),
        '<think>Hm</think>\n\n{"name": "now", "parameters": {}}',
        reasoning="Hm",
        calls=(("now", {}),),
    ),
    Recorded(
        "Llama 3.2: words, then a call in a fence",
        *("llama3_json", "none"),
        f'I look.\n\n```json\n{{"name": "get_weather", "arguments": {PARIS}}}\n```',
        content="I look.",
        calls=(("get_weather", {"city": "Paris", "days": 2}),),
    ),
    Recorded(
        "Mistral: a list",
        *("mistral", "none"),
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "now", "arguments": {{}}}}]</s>',
        calls=(("get_weather", {"city": "Paris", "days": 2}), ("now", {})),
    ),
    Recorded(
        "Mistral, later: names with arguments",
        *("mistral", "mistral"),
        f"[THINK]Hm.[/THINK]One moment.[TOOL_CALLS]get_weather[ARGS]{ODD_JSON}[TOOL_CALLS]now[ARGS]{{}}",
        content="One moment.",
        reasoning="Hm.",
        calls=(("get_weather", ODD), ("now", {})),
    ),
    Recorded(
        "Llama 4: pythonic",
        *("pythonic", "none"),
        '<|python_start|>[get_weather(city="a) \\"b\\", [", days=2, exact=true, places=["x", None]), '
        "now()]<|python_end|>",
        calls=(("get_weather", {"city": 'a) "b", [', "days": 2, "exact": True, "places": ["x", None]}), ("now", {})),
    ),
    Recorded("a list that is no call", "pythonic", "none", "[1, 2] is it", "[1, 2] is it"),
    Recorded(
        "gpt-oss: thought and answer",
        *("openai", "openai_gptoss"),
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>",
        content="It is 4.",
        reasoning="Easy.",
        prompt_end="<|end|><|start|>assistant",
    ),
    Recorded(
        "gpt-oss: thought, words and a call",
        *("openai", "openai_gptoss"),
        "<|channel|>analysis<|message|>A call.<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "One moment.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{PARIS}<|call|>",
        content="One moment.",
        reasoning="A call.",
        calls=(("get_weather", {"city": "Paris", "days": 2}),),
    ),
    Recorded(
        "gpt-oss: the recipient first",
        *("openai", "openai_gptoss"),
        "<|channel|>analysis<|message|>A call.<|end|><|start|>assistant to=functions.now<|channel|>commentary json"
        "<|message|>{}<|call|>",
        reasoning="A call.",
        calls=(("now", {}),),
    ),
]

MALFORMED = [
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call> and so on'),
    ("hermes", "<tool_call>{'name': 'now'}</tool_call>"),
    ("hermes", "<tool_call></tool_call>"),
    ("hermes", '<tool_call>{"name": "now", "argum'),
    ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    ("hermes", "a </tool_call> b <tool_cal"),
    ("hermes", '<tool_call>{"name": "\\ud8", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\ud800}"}</tool_call>'),
    ("qwen3_coder", "<tool_call><function=f>what is this?</function></tool_call>"),
    ("qwen3_coder", "<tool_call><function=f><parameter=a>1"),
    ("llama3_json", '{"name": "nobody", "parameters": {}}'),
    ("llama3_json", '{"name": "now", "parameters": 5}'),
    ("mistral", "[TOOL_CALLS] I do not know"),
    ("mistral", "[TOOL_CALLS]now[ARGS]nothing"),
    ("pythonic", "[now(1)]"),
    ("pythonic", "[now(a=__import__('os'))]"),
    ("pythonic", "[now(a=" + "(" * 500),
    ("pythonic", "[now(a={1, 2})]"),
    ("pythonic", "[now(a=1e999)]"),
    ("pythonic", "[now(**{'a': 1})]"),
    ("openai", "<|channel|>commentary to=functions.now<|message|>none"),
]
"""Parsers with answers of which nothing is a call, so that all of it is content."""
