"""Makes answers.json: how the chat templates of llama.cpp's source package write calls and reasoning.

    python -m tests.frontend.parsing.golden.make_answers VENDOR/llama.cpp

An answer is what the template renders for an assistant's message after the prompt, without the marks that end a turn.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from frontend.parsing.formats import REASONING_FORMATS, TOOL_FORMATS, UNREADABLE, find_format
from messages.errors import RequestError
from messages.ring.requests import ChatPrompt
from runtime.chat_files import DEFAULT, ChatFiles
from tokenizer_proc.chat import ChatTemplates

ANSWERS = Path(__file__).parent / "answers.json"
TEMPLATES = "models/templates"
SPECIAL_TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
MAX_PROMPT_END = 60

PARAMETERS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the city"},
            "days": {"type": "integer", "description": "how many days"},
            "places": {"type": "array", "items": {"type": "string"}, "description": "places"},
            "options": {"type": "object", "properties": {"a": {"type": "string"}}, "description": "options"},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"about {name}", "parameters": parameters}}
    for name, parameters in PARAMETERS.items()
]
ODD = {"city": 'Zürich "10%" \\ 😀\n { [ ] } </b>', "days": 3, "places": ["a'b", 'c"d'], "options": {"a": "x\ny"}}
THOUGHT = {"reasoning_content": "THOUGHT", "reasoning": "THOUGHT", "thinking": "THOUGHT"}


def _call(number: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


MESSAGES: dict[str, dict[str, Any]] = {
    "call": {"content": "", "tool_calls": [_call(1, "get_weather", ODD)]},
    "calls": {"content": "CONTENT", "tool_calls": [_call(1, "get_weather", {"city": "Rome"}), _call(2, "now", {})]},
    "thought": {"content": "", "tool_calls": [_call(1, "now", {})], **THOUGHT},
    "answer": {"content": "CONTENT", **THOUGHT},
}
"""The assistant's messages. Templates may leave out the content beside calls, and the thought."""

TURN_END = re.compile(
    r"(?:\s|<EOS>|<sep>|<\|(?:im_end|end|end_of_text|eo[tm]_id|eot|calls|call|return|message_sep|role_end)\|>"
    r"|<\|(?:user_end|assistant_end|END_OF_TURN_TOKEN)\|>|<turn\|>|<end_of_turn>|<\|tool_response>|<seed:eos>|\[e~\["
    r"|<SPECIAL_12>|<｜end▁of▁sentence｜>|<｜hy_eos:opensource｜>|<end_of_sentence>|</assistant>|<\|end_of_msg\|>)*\Z"
)
PROMPT = re.compile(r"<\|START_OF_TURN_TOKEN\|><\|CHATBOT_TOKEN\|>(?:<\|START_THINKING\|>(?:<\|END_THINKING\|>)?)?\Z")
"""One template writes the beginning of the next answer, wanted or not."""


def make_entry(source: str) -> dict[str, Any]:
    """Returns the formats that a template shows, by which marks, and with tools its answers or why it renders none."""
    groups = [entry.found_by for formats in (TOOL_FORMATS, REASONING_FORMATS) for entry in formats.values()]
    texts = {text for found_by in groups for group in found_by for text in group} | {*UNREADABLE}
    templates = ChatTemplates(ChatFiles({DEFAULT: source}, SPECIAL_TOKENS))
    tools, reasoning = find_format(TOOL_FORMATS, source), find_format(REASONING_FORMATS, source)
    entry = {"tools": tools, "reasoning": reasoning, "marks": sorted(text for text in texts if text in source)}
    if tools is None:
        return entry
    answers: dict[str, Any] = {}
    for name, message in MESSAGES.items():
        try:
            answers[name] = _answer(templates, message)
        except RequestError as error:
            answers[name] = error.info.message.removeprefix("The chat template refused the messages: ")
    return {**entry, "answers": answers}


def _answer(templates: ChatTemplates, message: dict[str, Any]) -> list[str]:
    """Returns the end of the prompt, and the answer."""
    has_thought = "reasoning" in message
    provided = {"tools": TOOLS, "enable_thinking": has_thought, "thinking": has_thought}

    def render(*messages: dict[str, Any], is_prompt: bool) -> str:
        variables = json.dumps(provided).encode()
        return templates.render(ChatPrompt(json.dumps(messages).encode(), is_prompt, template_kwargs=variables))

    user = {"role": "user", "content": "Hi"}
    prompt, whole = render(user, is_prompt=True), render(user, {"role": "assistant", **message}, is_prompt=False)
    start = next((i for i, (one, other) in enumerate(zip(prompt, whole, strict=False)) if one != other), len(prompt))
    if whole.rfind("<", 0, start) > whole.rfind(">", 0, start):
        start = whole.rfind("<", 0, start)
    whole = TURN_END.sub("", PROMPT.sub("", whole))
    return [whole[:start][-MAX_PROMPT_END:], whole[start:]]


def make_answers(llama_cpp: Path) -> dict[str, Any]:
    files = sorted((llama_cpp / TEMPLATES).glob("*.jinja"))
    return {file.stem: make_entry(file.read_text(encoding="utf-8")) for file in files}


if __name__ == "__main__":
    text = json.dumps(make_answers(Path(sys.argv[1])), ensure_ascii=False, indent=1)
    ANSWERS.write_text(text + "\n", encoding="utf-8")
