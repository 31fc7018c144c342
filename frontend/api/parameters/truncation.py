"""The fields by which a request has its prompt cut."""

from typing import Annotated

from msgspec import Meta

from frontend.api.parameters.sampling import MAX_INT32
from messages.errors import bad_request
from messages.ring.requests import Truncation, TruncationSide

NumKept = Annotated[
    Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None,
    Meta(description=f"a whole number from 1 to {MAX_INT32}, below the model's context, or -1 for what that leaves"),
]
Side = Annotated[TruncationSide | None, Meta(description='"left" or "right"')]


def make_truncation(num_tokens: int | None, side: TruncationSide | None, max_prompt_tokens: int) -> Truncation | None:
    """Returns how a prompt is to be cut that may have `max_prompt_tokens`. Raises `RequestError` (400).

    Without `num_tokens` none is, whatever the side.
    """
    if num_tokens is None:
        return None
    if num_tokens == 0 or num_tokens > max_prompt_tokens:
        raise bad_request(
            f"truncate_prompt_tokens must be a whole number from 1 to {max_prompt_tokens}, or -1 for what the context "
            f"leaves, got {num_tokens}",
            "truncate_prompt_tokens",
        )
    return Truncation(num_tokens, side or "left")
