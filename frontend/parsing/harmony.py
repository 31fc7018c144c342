"""Harmony, the format of gpt-oss: messages, each with a header that names its channel and the tool that it calls.

Headers are those that OpenAI's `openai_harmony` reads: `<|start|>assistant` (which the prompt has written for the first
message), `to=` before or after the channel, and the content's type. A text that is no header is shown.
"""

from frontend.parsing.marked_format import NAMED_CALL, CallSyntax, MarkedFormat
from messages.ring.requests import Thought

SPACE = r"\s{0,4}"
BEGIN = r"(?:<\|start\|>assistant)?"
TO_FUNCTION = rf"{SPACE}to=functions\.(?P<name>[\w.-]{{1,128}})"
TO_OTHER = rf"{SPACE}to=(?P<name>(?!functions\.)[\w.-]{{1,128}})"
TYPE = rf"{SPACE}(?:<\|constrain\|>)?\w{{0,16}}{SPACE}<\|message\|>"
CALLS = (
    rf"{BEGIN}<\|channel\|>(?:commentary|analysis){TO_FUNCTION}{TYPE}",
    rf"{BEGIN}<\|channel\|>commentary{TO_OTHER}{TYPE}",
    rf"<\|start\|>assistant{TO_FUNCTION}{SPACE}<\|channel\|>\w{{1,16}}{TYPE}",
)
FIRST_CALL = rf"{TO_FUNCTION}{SPACE}<\|channel\|>\w{{1,16}}{TYPE}"
THOUGHT = rf"{BEGIN}<\|channel\|>analysis(?:{SPACE}to=(?!functions\.)[\w.-]{{1,128}})?{TYPE}"
END = r"<\|(?:end|return|call)\|>|(?=<\|start\|>assistant)"
OTHER_HEADER = r"(?:<\|start\|>[^<]{0,160})?(?:<\|channel\|>[^<]{0,160}(?:<\|constrain\|>[^<]{0,16})?)?<\|message\|>"
CUT_HEADER = (
    r"(?:<\|start\|>[a-z]{0,9}(?: (?:to=)?[\w.-]{0,128})?)?"
    r"(?:<\|channel\|>[a-z]{0,10}(?: (?:to=)?[\w.-]{0,128})?(?: ?<\|constrain\|>\w{0,16}| [a-z]{0,10})?)?\Z"
)
CONTENT = {
    "close_pattern": rf"{OTHER_HEADER}|<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>){CUT_HEADER}",
    "content_args": {"strip": False},
    "join": "\n",
}
"""The text that is dropped: headers of channels that the user sees, ends, and a header that the answer's end cuts."""

CALL_FIELD = {"close_pattern": END, "content": "json", "transform": NAMED_CALL}

# `<|call|>` ends the model's output, so no grammar can have it before the end.
HARMONY_CALLS = MarkedFormat(
    (
        *({**CALL_FIELD, "open_pattern": pattern} for pattern in CALLS),
        {**CALL_FIELD, "open_pattern": FIRST_CALL, "starts_content": True},
    ),
    found_by=(("<|channel|>", "<|message|>", "functions"),),
    needs_special_tokens=True,
    content_close=CONTENT,
    forced=CallSyntax("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"),
)
HARMONY_REASONING = MarkedFormat(
    ({"open_pattern": THOUGHT, "close_pattern": END, "content_args": {"strip": False}, "join": "\n"},),
    found_by=(("<|channel|>", "<|message|>"),),
    needs_special_tokens=True,
    content_close=CONTENT,
    thought=Thought(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        resume="<|start|>assistant",
        answer="<|channel|>final<|message|>",
    ),
)
