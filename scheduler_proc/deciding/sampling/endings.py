"""How requests end: the reasons, and the tokens and lengths that end an output."""

from collections.abc import Collection, Mapping

import msgspec

from messages.errors import ErrorInfo
from messages.ring.replies import FinishReason
from messages.ring.requests import AbortReason, SamplingParams

NOT_FINITE = ErrorInfo(status=500, message="the model's output was not finite", type="server_error")

NONE_LEFT = ErrorInfo(
    status=400, message="bad_words, logit_bias or min_tokens leave none of allowed_token_ids", param="allowed_token_ids"
)

NONE_IN_GRAMMAR = ErrorInfo(
    status=400,
    message="allowed_token_ids, bad_words, logit_bias or min_tokens leave none of the tokens that the grammar allows",
)


class Ending(msgspec.Struct, frozen=True):
    """Why a request ends; the fields are those of `FinishedRow`."""

    finish_reason: FinishReason
    ended_by_token: bool = False
    stop_reason: int | None = None
    error: ErrorInfo | None = None


ABORTED: dict[AbortReason, Ending] = {"abort": Ending("abort"), "timeout": Ending("timeout")}
STOP_STRING = Ending("stop")
"""The detokenizer, which found the stop string, adds it."""
LENGTH = Ending("length")
COMPLETE = Ending("stop")
"""The grammar allows no further token, not even white space."""


def end_tokens_of(params: SamplingParams, eos_token_ids: Collection[int]) -> dict[int, Ending]:
    """Returns the tokens that end an output, with their endings. End-of-sequence takes precedence over stop tokens."""
    endings = {stop_id: Ending("stop", ended_by_token=True, stop_reason=stop_id) for stop_id in params.stop_token_ids}
    eos_ids = () if params.ignore_eos else eos_token_ids
    return endings | dict.fromkeys(eos_ids, Ending("stop", ended_by_token=True))


def find_ending(end_tokens: Mapping[int, Ending], token_id: int, length: int, max_length: int) -> Ending | None:
    """Returns how an output of `length` tokens (with its prompt) ends with its last token, or `None` if it continues.

    An end token takes precedence over the maximum length.
    """
    return end_tokens.get(token_id) or (LENGTH if length >= max_length else None)
