"""Finds which of the open requests kills a server: runs halves of them again, each in a new server."""

from collections.abc import Callable

from extras.replay.recording import Attempt, Recording

Play = Callable[[Recording], str]
"""Replays; returns how the server ended early, empty if it did not."""


def find_culprits(recording: Recording, play: Play) -> list[Attempt]:
    """Returns one of the open attempts that kills the server alone; all of them if none does.

    The number of servers started is about the binary logarithm of the number of open attempts.
    """
    suspects = recording.open_now()
    first = suspects
    is_known = len(suspects) == 1
    while len(suspects) > 1:
        middle = len(suspects) // 2
        latest = recording.choose(suspects[middle:])  # the latest requests are the likeliest
        is_known = bool(play(latest))
        suspects = (latest.open_now() or list(latest.attempts.values())) if is_known else suspects[:middle]
    if not is_known and suspects:
        alone = recording.choose(suspects)
        if not play(alone):
            return first
        suspects = list(alone.attempts.values())
    return suspects


def describe_culprits(culprits: list[Attempt]) -> str:
    """Returns a description of the request, with the frame that brought it and its progress."""
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
