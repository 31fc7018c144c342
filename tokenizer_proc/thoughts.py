"""The model's reasoning (a thought) at the end of the prompt and before the answer, and its grammar.

This module alone decides whether the prompt has opened or closed the thought; the scheduler relies on it.
"""

import json
from typing import TYPE_CHECKING, Any

import msgspec

from messages.columns import pack_int32
from messages.ring.requests import (
    THINKING_BUDGET,
    ChatPrompt,
    Grammar,
    SamplingParams,
    Thought,
    ThoughtLimit,
    ThoughtPlace,
)
from tokenizer_proc.marked_text import marks, text_until

if TYPE_CHECKING:
    from llguidance import LLTokenizer

BETWEEN = r"between: /[\n ]{0,4}/"
"""The text that models write between a thought and the answer."""


def place_of(prompt: str, thought: Thought, begun: str = "") -> ThoughtPlace:
    """Returns where the prompt ends, relative to the thought. `begun`: the part of the answer in the prompt, if any."""
    if begun.strip():
        return "inside" if begun.rfind(thought.begin) > begun.rfind(thought.end) else "behind"
    prompt = prompt.rstrip()
    if prompt.endswith(thought.begin.rstrip()):
        return "inside"
    return "behind" if prompt.endswith(thought.end.rstrip()) else "before"


def close_thought(prompt: str, thought: Thought, *, has_switch: bool) -> str:
    """Adds an empty thought to the prompt, unless it has a thought or the template has a switch for it."""
    place = place_of(prompt, thought)
    if place == "inside" and thought.empty:
        return prompt.rstrip().removesuffix(thought.begin) + thought.empty
    return prompt + thought.empty if place == "before" and not has_switch else prompt


def with_thought(params: SamplingParams, thought: Thought, place: ThoughtPlace) -> SamplingParams:
    """Adds the thought, and its budget if any, to the grammar of the parameters."""
    grammar = params.grammar
    if grammar is None:
        if thought.budget is None or place == "behind":
            return params
        grammar = Grammar("thought", "", THINKING_BUDGET)
    placed = msgspec.structs.replace(thought, place=place)
    return msgspec.structs.replace(params, grammar=msgspec.structs.replace(grammar, thought=placed))


def begun_in(chat: ChatPrompt) -> str:
    """Returns the text of the message that the output continues."""
    if not chat.continue_final_message:
        return ""
    content: Any = msgspec.json.decode(chat.messages)[-1].get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)


def join_grammars(thought: Thought | None, calls: str | None, answer: str | None, tokenizer: "LLTokenizer") -> str:
    """Returns the grammar, in llguidance's form, of an output: a thought, then calls or an answer, if any.

    `calls` and `answer` are grammars in that form or in Lark's.
    """
    parts = {"calls": calls, "answer": answer}
    texts = {name: text for name, text in parts.items() if text is not None}
    before_answer = "" if thought is None else marks(thought.answer, tokenizer)
    if len(texts) == 1 and not before_answer and (thought is None or thought.place == "behind"):
        return next(iter(texts.values()))
    ways = [f"{before_answer} @{name}" if name == "answer" else f"@{name}" for name in texts]
    rules = ["start: lead body", *_rules_of(thought, tokenizer), f"body: {' | '.join(ways)}"]
    grammars = [{"lark_grammar": "\n".join(rules)}]
    for name, text in texts.items():
        first, *others = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
        grammars += [{**first, "name": name}, *others]
    return json.dumps({"grammars": grammars})


def limit_of(thought: Thought, tokenizer: "LLTokenizer") -> ThoughtLimit | None:
    """Returns the limit of the thought, `None` if it has no budget or the prompt has closed it."""
    if thought.budget is None or thought.place == "behind":
        return None
    begin_ids, end_ids = (tokenizer.tokenize_str(mark, parse_special=True) for mark in (thought.begin, thought.end))
    rules = [f"start: {_begin(thought, tokenizer)} thought rest?", r"rest: /(.|\n)+/"]
    text = "\n".join([*rules, text_until("thought", thought.end, tokenizer)])
    return ThoughtLimit(text, thought.budget, pack_int32(end_ids), len(begin_ids) if thought.place == "before" else 0)


def _rules_of(thought: Thought | None, tokenizer: "LLTokenizer") -> list[str]:
    """Returns the rules of `lead`: the thought, or the rest of it, and the text between it and the answer."""
    if thought is None or thought.place == "behind":
        return ['lead: ""']
    between = marks(thought.resume, tokenizer) or "between"
    lead = f"{_begin(thought, tokenizer)} thought {between}"
    rules = [f"lead: ({lead})?" if thought.place == "before" else f"lead: {lead}"]
    return [*rules, text_until("thought", thought.end, tokenizer), *([] if thought.resume else [BETWEEN])]


def _begin(thought: Thought, tokenizer: "LLTokenizer") -> str:
    return "" if thought.place == "inside" else marks(thought.begin, tokenizer)
