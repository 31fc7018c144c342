"""When a request ends and what is said about it then."""

import time

import msgspec

from messages.errors import ErrorInfo
from messages.replies import FinishedRow, FinishReason, Usage
from messages.requests import AbortReason, UserMsg
from scheduler_proc.deciding.requests import Limits, PendingReq

NOT_FINITE = ErrorInfo(status=500, message="the model's output was not finite", type="server_error")

NONE_LEFT = ErrorInfo(
    status=400,
    message="bad_words, logit_bias or min_tokens leave none of allowed_token_ids",
    param="allowed_token_ids",
)


class Ending(msgspec.Struct, frozen=True):
    """Why a request ends; the fields are those of `FinishedRow`."""

    finish_reason: FinishReason
    ended_by_token: bool = False
    stop_reason: int | None = None
    error: ErrorInfo | None = None


ABORTED: dict[AbortReason, Ending] = {"abort": Ending("abort"), "timeout": Ending("timeout")}
STOP_STRING = Ending("stop")
"""The detokenizer, which saw the stop string, fills it in."""


def find_ending(pending: PendingReq, limits: Limits) -> Ending | None:
    """Returns why a request ends with the tokens it has, or `None` where it goes on.

    An end-of-sequence or stop token goes before a length that is reached with it. One without output goes on until its
    prompt is scored; the client of a continuation with output knows the scores already.
    """
    params = pending.sampling_params
    if pending.num_output_tokens:
        token_id = pending.token_ids[-1]
        if not params.ignore_eos and token_id in limits.eos_token_ids:
            return Ending("stop", ended_by_token=True)
        if token_id in params.stop_token_ids:
            return Ending("stop", ended_by_token=True, stop_reason=token_id)
    elif pending.is_scoring:
        return None
    return Ending("length") if len(pending.token_ids) >= pending.max_len else None


def no_token(pending: PendingReq) -> ErrorInfo:
    """Returns why a request that has these tokens got none after them."""
    processors = pending.logits_processors
    is_own_fault = processors is not None and processors.leaves_none(pending.token_ids, pending.num_output_tokens)
    return NONE_LEFT if is_own_fault else NOT_FINITE


def usage_of(pending: PendingReq) -> Usage:
    return Usage(pending.num_prompt_tokens, pending.cached_tokens or 0, pending.num_output_tokens)


def finished_row(pending: PendingReq, ending: Ending) -> FinishedRow:
    """Returns the last word about a request."""
    return FinishedRow(
        pending.uid,
        pending.attempt,
        ending.finish_reason,
        usage_of(pending),
        pending.stamped(time.monotonic_ns()),
        ending.ended_by_token,
        ending.stop_reason,
        ending.error,
    )


def refused_row(message: UserMsg, error: ErrorInfo) -> FinishedRow:
    """Returns the last word about a request that was not taken."""
    now_ns = time.monotonic_ns()
    stamps = msgspec.structs.replace(message.stamps, queued_ns=now_ns, finished_ns=now_ns)
    return FinishedRow(message.uid, message.attempt, "error", Usage(), stamps, error=error)
