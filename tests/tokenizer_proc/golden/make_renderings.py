"""Makes renderings.json: what transformers (5.23) renders with the chat templates in this directory.

    python -m tests.tokenizer_proc.golden.make_renderings

Qwen-Qwen3-0.6B.jinja is Qwen's (Apache 2.0), GLM-4.6.jinja is Z.ai's (MIT).
"""

import copy
import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent
RENDERINGS = GOLDEN / "renderings.json"
SPECIAL_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}

Message = dict[str, Any]


def _show(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def _calls(*calls: tuple[str, dict[str, Any]], content: str = "", **more: Any) -> Message:
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    listed = [{"id": f"call0000{i}", "type": "function", "function": each} for i, each in enumerate(functions)]
    return _show("assistant", content, tool_calls=listed, **more)


def _result(number: int, name: str) -> Message:
    return _show("tool", f"RESULT {name}", tool_call_id=f"call0000{number}", name=name)


USER, AGAIN = _show("user", "Wie ist's <b>dort</b>?"), _show("user", "Und morgen?")
THOUGHT = {"reasoning_content": "THOUGHT", "reasoning": "THOUGHT", "thinking": "THOUGHT"}
LOOK = ("get_weather", {"city": 'Zürich "10%"', "days": 2, "places": ["x"], "options": {"a": None}})
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "a city"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "Now", "parameters": {"type": "object", "properties": {}}},
    },
]
WITH_TOOLS = {"tools": TOOLS}

CHATS: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "plain": ([USER], {}),
    "turns": ([USER, _show("assistant", "ANSWER"), AGAIN], {}),
    "system": ([_show("system", "SYSTEM"), USER], {}),
    "tools": ([USER], WITH_TOOLS),
    "system and tools": ([_show("system", "SYSTEM"), USER], WITH_TOOLS),
    "call": ([USER, _calls(LOOK), _result(0, "get_weather")], WITH_TOOLS),
    "content and call": ([USER, _calls(LOOK, content="ANSWER"), _result(0, "get_weather")], WITH_TOOLS),
    "calls": ([USER, _calls(LOOK, ("now", {})), _result(0, "get_weather"), _result(1, "now"), AGAIN], WITH_TOOLS),
    "thought and call": ([USER, _calls(LOOK, **THOUGHT), _result(0, "get_weather")], WITH_TOOLS),
    "earlier thought": ([USER, _show("assistant", "ANSWER", **THOUGHT), AGAIN], {}),
    "thinking on": ([USER], {"enable_thinking": True, "thinking": True}),
    "thinking off": ([USER], {"enable_thinking": False, "thinking": False}),
    "parts": ([_show("user", [{"type": "text", "text": "PART"}, {"type": "text", "text": "PIECE"}])], {}),
}


def by_transformers(source: str, messages: list[Message], variables: dict[str, Any]) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        [copy.deepcopy(messages)], chat_template=source, add_generation_prompt=True, **SPECIAL_TOKENS, **variables
    )
    return rendered[0]


if __name__ == "__main__":
    renderings: dict[str, dict[str, str]] = {}
    for file in sorted(GOLDEN.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        texts = {name: by_transformers(source, *chat) for name, chat in CHATS.items() if name != "parts"}
        renderings[file.stem] = texts
    RENDERINGS.write_text(json.dumps(renderings, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
