"""Limits of keys as clients see them: the 429, and the headers that OpenAI's API has."""

from math import ceil

from extras.keys.key_file import KeyEntry
from extras.keys.ledger import Account, Bucket, find_waits
from frontend.errors import LimitedError

LIMIT_TEXTS = {
    "requests_per_minute": "requests a minute",
    "tokens_per_minute": "tokens a minute",
    "max_running": "requests at a time",
}


def make_refusal(key: str, entry: KeyEntry, account: Account, num_tokens: int) -> LimitedError:
    """Returns the error for a request that the ledger has not let in."""
    waits = find_waits(account, entry, num_tokens)
    name = max(waits, key=waits.__getitem__)
    retry_s = max(1, ceil(waits[name]))
    text = f"{getattr(entry, name)} {LIMIT_TEXTS[name]}"
    detail = f"; this request has about {num_tokens} in its prompt" if name == "tokens_per_minute" else ""
    kind = "tokens" if name == "tokens_per_minute" else "requests"
    return LimitedError(
        f"Rate limit reached: the key {key} has {text}{detail}. Try again in {retry_s} s.", kind, retry_s
    )


def make_headers(account: Account) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a response about what is left of each limit."""
    pairs: list[tuple[str, str]] = []
    for of, bucket in (("requests", account.requests), ("tokens", account.tokens)):
        if bucket is not None:
            pairs += [(f"x-ratelimit-{name}-{of}", value) for name, value in _values(bucket).items()]
    return [(name.encode(), value.encode()) for name, value in pairs]


def _values(bucket: Bucket) -> dict[str, str]:
    return {"limit": str(bucket.limit), "remaining": str(bucket.remaining), "reset": duration_text(bucket.reset_s)}


def duration_text(seconds: float) -> str:
    """Returns a time as OpenAI's API writes it: 120ms, 7.5s or 6m0s."""
    milliseconds = ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes}m" * bool(minutes) + f"{milliseconds / 1000:g}s"
