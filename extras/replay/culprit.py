"""Which of the requests that a server had when it died kills it: each half of them runs again, in a new server."""

from collections.abc import Callable

from extras.replay.recording import Attempt, Recording

Play = Callable[[Recording], str]
"""Replays; returns how the server ended before its time, empty if it did not."""


def find_culprits(recording: Recording, play: Play) -> list[Attempt]:
    """Returns, of what was open when the server died, one attempt that kills it alone; all if none does.

    It takes about as many servers as the number of open attempts has bits.
    """
    suspects = recording.open_now()
    first = suspects
    is_known = len(suspects) == 1
    while len(suspects) > 1:
        middle = len(suspects) // 2
        latest = recording.choose(suspects[middle:])  # what came last is more likely to be it
        is_known = bool(play(latest))
        suspects = (latest.open_now() or list(latest.attempts.values())) if is_known else suspects[:middle]
    if not is_known and suspects:
        alone = recording.choose(suspects)
        if not play(alone):
            return first
        suspects = list(alone.attempts.values())
    return suspects


def describe_culprits(culprits: list[Attempt]) -> str:
    """Returns who it was, with the frame that has brought it, and how far it came."""
    if not culprits:
        return "no request ran"
    if len(culprits) > 1:
        return f"none of the requests that ran kills it alone: {', '.join(one.name for one in culprits)}"
    (attempt,) = culprits
    old, new = attempt.outcome, attempt.replayed
    then = f"ended there ({old.reason})" if old.reason else "did not end there either"
    return (
        f"{attempt.name} kills it: {attempt.frame}\n"
        f"  recorded  {then}, after {len(old.tokens)} tokens\n  replayed  {len(new.tokens)} tokens"
    )
