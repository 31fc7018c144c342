"""The final rows of requests."""

import time

import msgspec

from messages.errors import ErrorInfo
from messages.ring.replies import FinishedRow, Usage
from messages.ring.requests import UserMsg
from scheduler_proc.deciding.requests import PendingReq
from scheduler_proc.deciding.sampling.endings import NONE_IN_GRAMMAR, NONE_LEFT, NOT_FINITE, Ending


def no_token(pending: PendingReq) -> ErrorInfo:
    """Returns the reason why a request got no next token."""
    processors, grammar = pending.logits_processors, pending.grammar
    if grammar is not None:
        if grammar.error is not None:
            return grammar.error
        bans = None if processors is None else processors.bans(pending.token_ids, pending.num_output_tokens)
        return NONE_IN_GRAMMAR if bans is not None and grammar.leaves_none(bans) else NOT_FINITE
    is_own_fault = processors is not None and processors.leaves_none(pending.token_ids, pending.num_output_tokens)
    return NONE_LEFT if is_own_fault else NOT_FINITE


def usage_of(pending: PendingReq) -> Usage:
    return Usage(pending.num_prompt_tokens, pending.cached_tokens or 0, pending.num_output_tokens)


def finished_row(pending: PendingReq, ending: Ending) -> FinishedRow:
    """Returns the final row of a request."""
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
    """Returns the final row of a refused request."""
    now_ns = time.monotonic_ns()
    stamps = msgspec.structs.replace(message.stamps, queued_ns=now_ns, finished_ns=now_ns)
    return FinishedRow(message.uid, message.attempt, "error", Usage(), stamps, error=error)
