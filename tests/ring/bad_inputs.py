"""Bad inputs as data: the request, the expected status, the named parameter, and a part of the message."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MAX_BODY_MB = 1
"""The limit of the server that receives them."""

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE, ABORT, FLUSH = "/tokenize", "/detokenize", "/abort_request", "/flush_cache"

CONTEXT = 256
VOCAB_SIZE = 320

USER = {"role": "user", "content": "hi"}


class Bad(NamedTuple):
    path: str
    body: bytes | dict[str, Any]
    param: str | None
    fragment: str
    status: int = 400
    headers: Mapping[str, str] = MappingProxyType({})

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    @property
    def name(self) -> str:
        return f"{self.path} {self.content[:60].decode(errors='replace')} {dict(self.headers) or ''}".strip()


def field(path: str, name: str, *values: Any, fragment: str | None = None, **others: Any) -> list[Bad]:
    """Returns a bad input for each of `values` of the field `name`, in a body that is otherwise valid for `path`."""
    good: dict[str, Any] = {"messages": [USER]} if path == CHAT else {"prompt": "x"}
    return [Bad(path, {**good, **others, name: value}, name, fragment or name) for value in values]


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def raw(path: str, name: str, *literals: bytes, fragment: str | None = None, param: str | None = "") -> list[Bad]:
    """Like `field`, with values that Python's JSON does not write."""
    good = b'"messages": [{"role": "user", "content": "hi"}]' if path == CHAT else b'"prompt": "x"'
    named = name if param == "" else param
    return [
        Bad(path, b'{%b, "%b": %b}' % (good, name.encode(), literal), named, fragment or name) for literal in literals
    ]


def malformed(path: str) -> list[Bad]:
    """Returns bodies that are not JSON objects, for any `path`."""
    return [
        Bad(path, b"", None, "JSON"),
        Bad(path, b'{"prompt": "x"', None, "JSON"),
        Bad(path, b"\xff\xfe{}", None, "UTF-8"),
        Bad(path, b'{"prompt": "\xc3\x28"}', None, "UTF-8"),
        Bad(path, b"[1, 2]", None, "object"),
        Bad(path, b'"x"', None, "object"),
        Bad(path, b"null", None, "object"),
        Bad(path, b'{"prompt": "x"} {}', None, "JSON"),
        Bad(path, b"{'prompt': 'x'}", None, "JSON"),
        Bad(path, b'{"zzz": ' + b"[" * 4000 + b"]" * 4000 + b"}", None, "deep"),
        Bad(path, b'{"zzz": ' + b'{"a":' * 4000, None, "deep"),
        Bad(path, b'{"zzz": 1, "zzz": 2}', None, "more than once"),
        Bad(path, b'{"prompt": "\\ud800"}', None, "JSON"),
    ]


def media_types(path: str) -> list[Bad]:
    return [
        Bad(path, {"prompt": "x"}, None, "application/json", 415, {"Content-Type": kind})
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x")
    ] + [Bad(path, b"\x1f\x8b\x08", None, "gzip", 415, {"Content-Encoding": "gzip"})]


def sampling(path: str) -> list[Bad]:
    """Returns bad sampling parameters, which all generating endpoints share."""
    return [
        *field(path, "temperature", -0.1, 2.5, "hot", True, [1], {}, fragment="a number in [0, 2]"),
        *raw(path, "temperature", b"NaN", b"Infinity", b"-Infinity", fragment="JSON", param=None),
        *raw(path, "temperature", b"1e999", b"-1e999"),
        *field(path, "top_p", 0, -1, 1.01, "1", fragment="a number in (0, 1]"),
        *field(path, "top_k", -2, 1.5, "5", 2**31, fragment="whole number"),
        *field(path, "min_p", -0.1, 1.1, False),
        *field(path, "top_n_sigma", -2, 101, "1"),
        *field(path, "typical_p", 0, 1.1, "1"),
        *field(path, "xtc_probability", -0.1, 1.1, True),
        *field(path, "xtc_threshold", -0.1, 1.1, "0.1"),
        *field(path, "dry_multiplier", -0.1, 101, "1"),
        *field(path, "dry_base", 0.9, 101, True),
        *field(path, "dry_allowed_length", -1, 1.5),
        *field(path, "dry_penalty_last_n", -2, "5"),
        *field(path, "dry_sequence_breakers", "x", [""], ["x"] * 65, [5]),
        *field(path, "mirostat", 2),
        *field(path, "presence_penalty", -2.1, 2.1, "0"),
        *field(path, "frequency_penalty", -3, 99),
        *field(path, "repetition_penalty", 0, -1, True),
        *field(path, "seed", 2**63, -(2**63) - 1, 0.5, "1"),
        *field(path, "max_tokens", 0, -1, 1.5, "5", True, 10**30),
        *field(path, "max_tokens", 2**31, fragment="from 1 to 2147483647"),
        *field(path, "user", 5, ["me"], {}),
        *field(path, "metadata", "x", [1], {"a": 1}, {"a": None}),
        *field(path, "store", "true", 1),
        *field(path, "service_tier", 5, ["auto"], True),
        *field(path, "min_tokens", -1, "1"),
        *field(path, "min_tokens", 9, max_tokens=8),
        *field(path, "stop", "", ["a", ""], ["a"] * 65, 5, [5], {"a": 1}),
        *field(path, "stop_token_ids", [-1], "5", [1.5], 5, [VOCAB_SIZE], [2**31]),
        *field(path, "logit_bias", {"5": 101}, {"5": "x"}, {"x": 1}, {"-1": 1}, {str(VOCAB_SIZE): 1}, [1]),
        *field(path, "logit_bias", [["x"]], [["", 1]], [["x", "y"]], [["x", True]], [[5, 101]], [[VOCAB_SIZE, 1]]),
        *field(path, "allowed_token_ids", [], [VOCAB_SIZE], [-1], "5"),
        *field(path, "bad_words", "x", [""], [5]),
        *field(path, "ignore_eos", 1, "true"),
        *field(path, "truncate_prompt_tokens", 0, -2, CONTEXT, 1.5, "5", True),
        *field(path, "truncation_side", "middle", 5, truncate_prompt_tokens=5),
        *field(path, "timeout_s", 0, -1, "5"),
        *field(path, "priority", "high", 0.5, 2**63),
        *field(path, "cache_salt", "", "s" * 129, 5),
        *field(path, "prompt_logprobs", -1, 21, "1"),
        *field(path, "request_id", "", "a b", "a\nb", "x" * 129, 5),
        *field(path, "stream", 1, "yes"),
        *field(path, "temprature", 1, fragment="did you mean temperature?"),
        *field(path, "max_token", 1, fragment="did you mean max_tokens?"),
        *grammars(path),
    ]


def grammars(path: str) -> list[Bad]:
    """Returns bad grammars; the tokenizer, which compiles them, detects most."""
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    tag = {"type": "structural_tag", "triggers": ["<f="]}
    return [
        *field(path, "response_format", "json", {}, {"type": "yaml"}, {"type": "json_object", "scheme": {}}),
        *field(path, "response_format", tag, fragment="structures and triggers"),
        *field(path, "response_format", {**tag, "structures": []}, {**tag, "structures": [{"begin": "<g="}]}),
        *field(path, "response_format", response_format({"not": {}}), fragment='["not"]'),
        *field(path, "response_format", response_format({"type": "objct"}), fragment="objct"),
        *field(path, "guided_json", 5, [], "{", "", fragment="guided_json"),
        *field(path, "guided_json", {"properties": {"a": {"uniqueItems": True}}}, fragment="(at #/properties/a)"),
        *field(path, "guided_json", {"$ref": "#"}, endless, fragment="never ends"),
        *field(path, "guided_json", {"$ref": "http://x/y.json"}, fragment="http://x/y.json"),
        *field(path, "guided_json", deep_schema(300), fragment="recursion limit"),
        *field(path, "guided_json", {"minimum": 5, "maximum": 3, "type": "integer"}, fragment="Unsatisfiable"),
        *field(path, "guided_json", {"enum": ["x" * 300_000]}, fragment="at most 262144 characters"),
        *field(path, "guided_json", {"x-guidance": {"lenient": True}, "not": {}}, fragment='["not"]'),
        *field(path, "guided_regex", "", 5, ["a"], "(a", "(?=a)b", "(" * 5_000 + "a" + ")" * 5_000),
        *field(path, "guided_choice", ["b"], guided_regex="a", fragment="give one of them"),
        *field(path, "guided_choice", [], [""], "a", [1], {"a": 1}),
        *field(path, "guided_grammar", "", "start: foo", "?!", "start: " + "(" * 5_000),
        *field(path, "structured_outputs", 5, [], {"reges": "a"}, {"json": {}, "regex": 5}),
        *field(path, "guided_jsn", {"type": "object"}, fragment="did you mean guided_json?"),
        *field(path, "guided_whitespace_pattern", " *", fragment="not supported"),
    ]


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def of_generate() -> list[Bad]:
    return [
        Bad(GENERATE, {}, "prompt", "required"),
        *field(GENERATE, "prompt", "", [], None, 5, ["a"], [[1]], [1, True], [1.5], [5, -1], {"a": 1}),
        Bad(GENERATE, {"prompt": [5, VOCAB_SIZE]}, "prompt", str(VOCAB_SIZE)),
        Bad(GENERATE, {"prompt": [5] * 300}, "prompt", f"maximum context length is {CONTEXT} tokens"),
        Bad(GENERATE, {"prompt": "x " * 50_000}, "prompt", f"maximum context length is {CONTEXT} tokens"),
        *field(GENERATE, "n", 2, 0, "1"),
        *field(GENERATE, "logprobs", 21, -1, True),
        *field(GENERATE, "suffix", "end", fragment="not supported"),
    ]


def of_completions() -> list[Bad]:
    return [
        Bad(COMPLETIONS, {}, "prompt", "required"),
        Bad(COMPLETIONS, {"prompt": "x", "model": "zzz"}, "model", "`zzz` does not exist", 404),
        Bad(COMPLETIONS, {"prompt": "x", "model": 5}, "model", "model"),
        *field(COMPLETIONS, "prompt", "", [], [""], [[]], ["a", 5], ["a", [5]], [1.5], [[-1]], None, True),
        Bad(COMPLETIONS, {"prompt": ["x", "y" * 999]}, "prompt", "maximum context length"),
        *field(COMPLETIONS, "n", 0, 1.5, "2", True),
        *field(COMPLETIONS, "n", 65, 2**63 - 1, fragment="64"),
        Bad(COMPLETIONS, {"prompt": ["x"] * 1281}, "prompt", "--max-queued-requests"),
        *field(COMPLETIONS, "n", 2, temperature=0, fragment="greedy"),
        *field(COMPLETIONS, "best_of", 0, 65),
        *field(COMPLETIONS, "best_of", 1, n=2),
        *field(COMPLETIONS, "best_of", 3, stream=True),
        *field(COMPLETIONS, "logprobs", -1, 21, True, "1"),
        *field(COMPLETIONS, "echo", 1, "true"),
        *field(COMPLETIONS, "suffix", "end", fragment="not supported"),
        *field(COMPLETIONS, "stream_options", {"include_usage": True}, fragment="stream"),
        *field(COMPLETIONS, "stream_options", 5, {"include_usage": 1}, stream=True),
        *field(COMPLETIONS, "prompt_logprobs", 1, stream=True),
    ]


def of_chat() -> list[Bad]:
    def message(**fields: Any) -> list[Bad]:
        return [Bad(CHAT, {"messages": [USER, fields]}, "messages", "messages")]

    return [
        Bad(CHAT, {}, "messages", "required"),
        Bad(CHAT, {"messages": [USER], "model": "zzz"}, "model", "does not exist", 404),
        *field(CHAT, "messages", [], None, "hi", {"role": "user"}, [5], ["hi"], [[]]),
        *message(),
        *message(role="", content="hi"),
        *message(role="r" * 65, content="hi"),
        *message(role=5, content="hi"),
        *message(content="hi"),
        *message(role="user"),
        *message(role="user", content=None),
        *message(role="user", content=5),
        *message(role="user", content=[5]),
        *message(role="user", content=[{"type": "text"}]),
        *message(role="user", content=[{"type": "text", "text": 5}]),
        *message(role="user", content=[{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]),
        *message(role="user", content=[{"type": "image_url"}]),
        *message(role="user", content=[{"type": "image_url", "image_url": {"url": "x", "detail": "huge"}}]),
        *message(role="user", content=[{"type": "input_audio", "input_audio": {}}]),
        *field(CHAT, "mm_processor_kwargs", 5, {"size": 1}, {"min_pixels": 0}),
        *message(role="assistant", content="a", tool_calls="x"),
        *message(role="assistant", content="a", tool_calls=[5]),
        *message(role="assistant", content="a", tool_calls=[{"id": "c", "type": "function"}]),
        *message(role="assistant", tool_calls=[{"id": "c", "function": {"name": "", "arguments": "{}"}}]),
        *message(role="assistant", tool_calls=[{"id": "c", "function": {"name": "f", "arguments": 5}}]),
        *message(role="assistant", tool_calls=[{"id": 5, "function": {"name": "f", "arguments": "{}"}}]),
        *message(role="tool", content="5"),
        *message(role="tool", content="5", tool_call_id=5),
        *field(CHAT, "top_logprobs", 1, fragment="logprobs"),
        *field(CHAT, "top_logprobs", 21, -1, "1", logprobs=True),
        *field(CHAT, "logprobs", 1, "true"),
        *field(CHAT, "max_completion_tokens", 0, -1, "5"),
        *field(CHAT, "n", 0, 65, "2"),
        *field(CHAT, "continue_final_message", True, add_generation_prompt=True),
        *field(CHAT, "chat_template", "{{ 1 }}", fragment="not supported"),
        *field(CHAT, "chat_template_kwargs", 5, "x"),
        *field(CHAT, "tools", "x", [5], [{}], [{"type": "x", "function": {"name": "f"}}], [{**tool("f"), "zzz": 1}]),
        *field(
            CHAT, "tools", [tool("")], [tool("a b")], [tool("f\n")], [tool("x" * 129)], fragment="[0].function.name"
        ),
        *field(CHAT, "tools", [tool("f"), tool("f")], fragment="tools[1]: there are two tools"),
        *field(CHAT, "tools", [tool("f", parameters=[])], fragment="tools[0].function.parameters"),
        *field(CHAT, "tools", [tool("f", paramters={})], fragment="paramters"),
        *field(CHAT, "tools", [tool(f"f{i}") for i in range(10_000)], fragment="at most 1024, got 10000"),
        *field(CHAT, "tools", [tool("f")], fragment="--tool-call-parser"),
        *field(CHAT, "tool_choice", "required", tool("f"), "f", 5, fragment="tool_choice"),
        *field(CHAT, "tool_choice", "f", {}, {"type": "function"}, tool("f", x=1), tools=[tool("f")]),
        *field(CHAT, "tool_choice", tool("g"), tools=[tool("f")], fragment="one of the tools, got 'g'"),
        *field(CHAT, "tools", [tool("f")], tool_choice="required", fragment="--tool-call-parser"),
        *field(CHAT, "parallel_tool_calls", 1, "no"),
        *field(CHAT, "functions", 5, [{}], [{"name": "a b"}], fragment="functions must be"),
        *field(CHAT, "function_call", {"name": "f"}, "f", 5, fragment="function_call"),
        *field(CHAT, "include_reasoning", 1, "no"),
        *field(CHAT, "reasoning_effort", 1, ["low"]),
        Bad(CHAT, {"messages": [{"role": "user", "content": "word " * 500}]}, "messages", "maximum context length"),
    ]


def of_responses() -> list[Bad]:
    def bad(name: str, *values: Any, fragment: str | None = None, **others: Any) -> list[Bad]:
        return [Bad(RESPONSES, {"input": "x", **others, name: value}, name, fragment or name) for value in values]

    def items(fragment: str, *items: Any) -> list[Bad]:
        return [
            Bad(RESPONSES, {"input": [{"role": "user", "content": "hi"}, item]}, "input", fragment) for item in items
        ]

    image = {"type": "input_image", "image_url": "http://x/y.png"}
    function = {"type": "function", "name": "f", "parameters": {}}
    unknown = {"previous_response_id": "resp_0", "input": "x"}
    return [
        Bad(RESPONSES, {}, "input", "required"),
        Bad(RESPONSES, {"input": "x", "model": "zzz"}, "model", "does not exist", 404),
        Bad(RESPONSES, unknown, "previous_response_id", "Response with id 'resp_0' not found", 404),
        Bad(f"{RESPONSES}/resp_0/cancel", {}, None, "not found", 404),
        *bad("input", "", [], None, {"role": "user"}, ["hi"]),
        Bad(RESPONSES, {"input": "word " * 500}, "input", f"maximum context length is {CONTEXT} tokens"),
        *items("input[1]: an item of type 'web_search_call'", {"type": "web_search_call", "id": "ws_1"}),
        *items(
            "input[1]: no stored response that has ended contains 'msg_1' in its output",
            {"id": "msg_1"},
            {"type": "item_reference", "id": "msg_1"},
        ),
        *items("input[1].role", {"role": "tool", "content": "5"}, {"type": "message", "content": "x"}, {"role": ""}),
        *items("input[1].content is required", {"role": "user"}, {"role": "user", "content": None}),
        *items("input[1].content must be a string or a list, got 5", {"role": "user", "content": 5}),
        *items("input[1].content[0]: image input is not supported", {"role": "user", "content": [image]}),
        *items("input[1].content[0].text is required", {"role": "user", "content": [{"type": "input_text"}]}),
        *items("input[1].name is required", {"type": "function_call", "call_id": "c", "arguments": "{}"}),
        *items(
            "input[1].arguments must be a string",
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}},
        ),
        *items("input[1].call_id is required", {"type": "function_call_output", "output": "5"}),
        *items("encrypted_content", {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABo"}),
        *bad("tools", [5], [{"type": "function", "name": "a b"}], [{"type": "function"}]),
        *bad(
            "tools",
            [{"type": "local_shell"}],
            [{"type": "mcp"}],
            [{"type": "computer_use_preview"}],
            [{"type": "custom"}],
            [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}],
            fragment="tools[0]",
        ),
        *bad("tools", [{"type": "custom", "name": "f", "format": {"type": "grammar"}}], fragment="the format of f"),
        *bad("tools", [{"type": "function", "function": {"name": "f"}}], fragment="not in a function object"),
        *bad("tools", [function, function], fragment="tools[1]: there are two tools"),
        *bad("tools", [function], fragment="--tool-call-parser"),
        *bad("tool_choice", "f", {"type": "web_search"}, "required", {"type": "function", "name": "f"}),
        *bad("text", 5, {"format": {"type": "yaml"}}, {"format": {"type": "json_schema"}}),
        Bad(RESPONSES, {"input": "x", "text": text_format({"not": {}})}, "text.format", '["not"]'),
        *bad("include", "x", ["zzz"]),
        *bad("max_output_tokens", 0, "5"),
        *bad("top_logprobs", 21),
        *bad("truncation", "middle"),
        *bad("reasoning", "low", {"effort": 5}),
        *bad("background", True, fragment="store must not be false", store=False),
        *bad("conversation", "conv_1", fragment="not supported"),
        *bad("prompt", {"id": "pmpt_1"}, fragment="not supported"),
        *bad("prompt_logprobs", 1, fragment="only for /v1/completions"),
        *bad("temperature", 2.5),
        *bad("max_output_token", 5, fragment="did you mean max_output_tokens?"),
    ]


def text_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": "json_schema", "name": "answer", "schema": schema}}


def of_messages() -> list[Bad]:
    good = {"max_tokens": 9, "messages": [USER]}

    def bad(name: str, *values: Any, fragment: str | None = None, **others: Any) -> list[Bad]:
        return [Bad(MESSAGES, {**good, **others, name: value}, name, fragment or name) for value in values]

    def message(fragment: str, **fields: Any) -> list[Bad]:
        return bad("messages", [USER, fields], fragment=fragment)

    def user(fragment: str, *blocks: Any) -> list[Bad]:
        return [bad for block in blocks for bad in message(fragment, role="user", content=[block])]

    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    function = {"name": "f", "input_schema": {}}
    return [
        Bad(MESSAGES, {"messages": [USER]}, "max_tokens", "max_tokens is required"),
        Bad(MESSAGES, {"max_tokens": 9}, "messages", "messages is required"),
        Bad(MESSAGES, {**good, "model": "claude-5"}, "model", "does not exist", 404),
        Bad(COUNT, {}, "messages", "messages is required"),
        Bad(COUNT, {"messages": [USER], "model": "claude-5"}, "model", "does not exist", 404),
        Bad(COUNT, {"messages": [{"role": "user", "content": [image]}]}, "messages", "messages[0].content[0]"),
        *bad("max_tokens", 0, "5", None),
        *bad("messages", [], "hi", [5], [{"role": "user"}]),
        Bad(MESSAGES, {**good, "messages": [{"role": "user", "content": "word " * 500}]}, None, "prompt is too long: "),
        *message("messages[1].role must be user or assistant", role="tool", content="x"),
        *message("messages[1].content must not be empty", role="user", content=[]),
        *message("messages[1].content must be a string or a list", role="user", content=5),
        *user("messages[1].content[0]: image input is not supported by this model", image),
        *user("messages[1].content[0]: a block of type", {"type": "document"}, {"type": "zzz"}),
        *user("messages[1].content[0].text is required", {"type": "text"}),
        *user("cannot be in a message of the user", {"type": "tool_use", "id": "c", "name": "f", "input": {}}),
        *user("tool_use_id is required", {"type": "tool_result", "content": "x"}),
        *user(
            ".content[0].text is required",
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text"}]},
        ),
        *message(".input is required", role="assistant", content=[{"type": "tool_use", "id": "c", "name": "f"}]),
        *bad("system", 5, [{"type": "text"}], [image]),
        *bad("tools", [5], [{"name": "a b", "input_schema": {}}], [{"name": "f"}]),
        *bad("tools", [{"type": "web_search_20250305", "name": "web_search"}], fragment="tools[0]: a tool of type"),
        *bad("tools", [function], fragment="--tool-call-parser"),
        *bad("tool_choice", "any", {"type": "tool"}, {"type": "any"}, {"type": "tool", "name": "f"}),
        *bad("thinking", True, {"type": "zzz"}),
        *bad("stop_sequences", "x", [""]),
        *bad("temperature", 2.5),
        *bad("mcp_servers", [{"name": "x"}], fragment="not supported"),
        *bad("output_config", {"format": {"type": "json_schema"}}, {"format": "json"}),
        Bad(MESSAGES, b"{", None, "JSON"),
        Bad(MESSAGES, {"max_tokens": 9}, None, "application/json", 415, {"Content-Type": "text/plain"}),
    ]


def of_the_rest() -> list[Bad]:
    return [
        Bad(TOKENIZE, {}, "prompt", "prompt"),
        Bad(TOKENIZE, {"prompt": "x", "messages": [USER]}, "prompt", "either"),
        *field(TOKENIZE, "prompt", 5, [1], True),
        Bad(TOKENIZE, {"messages": [{"role": "user"}]}, "messages", "content"),
        Bad(TOKENIZE, {"prompt": "x", "model": "zzz"}, "model", "does not exist", 404),
        *field(TOKENIZE, "return_token_strs", 1),
        *field(TOKENIZE, "tools", "x", [5], [{}], [{"type": "x", "function": {"name": "f"}}]),
        *field(TOKENIZE, "add_special_token", True, fragment="did you mean"),
        Bad(DETOKENIZE, {}, "tokens", "required"),
        *[Bad(DETOKENIZE, {"tokens": value}, "tokens", "tokens") for value in ("x", [-1], [VOCAB_SIZE], [1.5], None)],
        *[Bad(ABORT, body, None, "exactly one") for body in ({}, {"all": False}, {"uid": 1, "all": True})],
        Bad(ABORT, {"uid": "1"}, "uid", "whole number"),
        Bad(FLUSH, {"force": "yes"}, "force", "true or false"),
    ]


BAD_INPUTS = [
    *(bad for path in (GENERATE, CHAT, TOKENIZE) for bad in malformed(path)),
    Bad(GENERATE, b'{"zzz": 1e999}', "prompt", "required"),
    Bad(CHAT, b'{"zzz": [-1e999], "messages": 1}', "messages", "messages must be"),
    Bad(MESSAGES, b'{"zzz": {"a": 1e999}}', "max_tokens", "required"),
    *raw(GENERATE, "json_schema", b"1e999", b'{"type": 1e999}', fragment="guided_json", param="guided_json"),
    *raw(GENERATE, "structural_tag", b"1e999", b'{"type": 1e999}', fragment="not supported"),
    *(bad for path in (GENERATE, COMPLETIONS, FLUSH) for bad in media_types(path)),
    *(bad for path in (GENERATE, COMPLETIONS, CHAT) for bad in sampling(path)),
    *of_generate(),
    *of_completions(),
    *of_chat(),
    *of_responses(),
    *of_messages(),
    *of_the_rest(),
]
