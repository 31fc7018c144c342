"""Where a replayed request differs from its recording."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from extras.replay.recording import Attempt

LOGPROB_TOLERANCE = 1e-3
"""On a GPU rows in another batch have sums that round differently. The larger differences of 16 bits are reported."""


FACTS = ("prompt", "text", "reason", "stop_reason", "error", "num_prompt_tokens")
"""Fields of `Outcome`."""


class Difference(NamedTuple):
    """The first difference, in `what`. `at_token` is its token, or the end if it concerns no token."""

    attempt: Attempt
    what: str
    recorded: Any
    replayed: Any
    at_token: int


def find_first(attempts: Iterable[Attempt]) -> Difference | None:
    """Returns the first difference of the first request that has one, in the order of the recording."""
    return next((found for attempt in attempts if (found := find_difference(attempt)) is not None), None)


def find_difference(attempt: Attempt) -> Difference | None:
    """Returns the first difference in the replay of `attempt`, up to its end if that was requested."""
    old, new = attempt.outcome, attempt.replayed
    index = _find_index(old.tokens, new.tokens, is_whole=attempt.is_whole)
    if index is not None:
        return Difference(attempt, f"token {index}", _at(old.tokens, index), _at(new.tokens, index), index)
    for what, recorded, replayed in _facts(attempt):
        if recorded != replayed:
            return Difference(attempt, what, recorded, replayed, len(old.tokens))
    logprobs = [("logprob of token", old.logprobs, new.logprobs)]
    if attempt.is_whole:
        logprobs.append(("logprob of prompt token", old.prompt_logprobs, new.prompt_logprobs))
        logprobs.append(("number of the pooled prompt", old.pooled, new.pooled))
    for what, recorded, replayed in logprobs:
        index = _find_far(recorded, replayed)
        if index is not None:
            return Difference(attempt, f"{what} {index}", _at(recorded, index), _at(replayed, index), index)
    return None


def _facts(attempt: Attempt) -> list[tuple[str, Any, Any]]:
    """Returns the values that must be equal besides tokens and logprobs: (name, recorded, replayed)."""
    old, new = attempt.outcome, attempt.replayed
    if attempt.is_whole:
        return [(name, getattr(old, name), getattr(new, name)) for name in FACTS]
    num_chars = min(len(old.text), len(new.text))
    return [("text", old.text[:num_chars], new.text[:num_chars])]


def describe(found: Difference) -> str:
    """Returns the difference as people read it, with the messages in which both sides have it."""
    lines = [f"{found.attempt.name}: {found.what} differs"]
    sides = (("recorded", found.recorded, found.attempt.outcome), ("replayed", found.replayed, found.attempt.replayed))
    for side, value, outcome in sides:
        row = outcome.row_with(found.at_token)
        lines += [f"  {side}  {value!r}", f"    in  {row.to_plain() if row else 'no message'}"]
    return "\n".join(lines)


def _find_index(old: Sequence[int], new: Sequence[int], *, is_whole: bool) -> int | None:
    """Returns the first index at which they differ; a longer `new` differs only where it must not be longer."""
    for index, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            return index
    is_short = len(new) < len(old)
    return min(len(old), len(new)) if is_short or (is_whole and len(new) > len(old)) else None


def _find_far(old: Sequence[float], new: Sequence[float]) -> int | None:
    for index, value in enumerate(old):
        if index >= len(new) or not math.isclose(value, new[index], rel_tol=1e-3, abs_tol=LOGPROB_TOLERANCE):
            return index
    return None


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else "nothing"
