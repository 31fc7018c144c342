"""The format of calls for models that have none of their own: an answer is lines of JSON, or a text.

The first character decides, so a text can be streamed as it is written, and a grammar can hold calls to their schemas.
"""

from frontend.parsing.marked_format import CALL, CallSyntax, MarkedFormat

GENERIC = "generic"

GENERIC_CALLS = MarkedFormat(
    ({"open_pattern": r'\s{0,8}(?=\{\s{0,24}"name")', "content": "json", "transform": CALL, "starts_content": True},),
    found_by=(),
    forced=CallSyntax("", separator="\n"),
)
ANSWER_GRAMMAR = r"start: /[^{ \t\r\n](.|\n)*/"
