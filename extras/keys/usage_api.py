"""`GET /usage`: what keys have used, and what is left of their limits."""

import msgspec
from starlette.requests import Request

from extras.keys.key_file import KeyEntry
from extras.keys.ledger import Account, KeyUsage
from extras.keys.meter import Meter
from frontend.http.endpoint import Endpoint
from frontend.http.responses import JsonReply
from frontend.requests.trace import trace_of


class LimitView(msgspec.Struct, frozen=True):
    """A limit a minute: what is left of it, and the seconds until all of it is."""

    limit: int
    remaining: int
    reset_s: float


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """Sums since the key was first used. A limit is null if there is none."""

    key: str
    admin: bool
    models: tuple[str, ...]
    """Empty: all."""
    share: int
    priority: int | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    seconds: float
    limited: int
    """Requests that a limit has refused."""
    running: int
    max_running: int | None
    requests_per_minute: LimitView | None
    tokens_per_minute: LimitView | None


class UsageList(msgspec.Struct, frozen=True):
    data: list[KeyView]
    object: str = "list"


class UsageApi:
    def __init__(self, meter: Meter):
        self._meter = meter

    async def usage(self, request: Request) -> JsonReply:
        """Returns the usage of the key or, to an admin, of all keys."""
        client = trace_of(request.scope).client
        return JsonReply(UsageList([view for view in view_all(self._meter) if client.sees(view.key)]))


def view_all(meter: Meter) -> list[KeyView]:
    """Returns what there is to see of each key in the file."""
    known = meter.ledger.read_all()
    entries = meter.table.entries.items()
    return [
        _view(name, entry, known.get(name, (KeyUsage(), 0)), meter.ledger.balance(name, entry))
        for name, entry in entries
    ]


def _view(name: str, entry: KeyEntry, known: tuple[KeyUsage, int], account: Account) -> KeyView:
    used, running = known
    requests, tokens = (
        bucket and LimitView(bucket.limit, bucket.remaining, round(bucket.reset_s, 3))
        for bucket in (account.requests, account.tokens)
    )
    sums = used._replace(seconds=round(used.seconds, 3))._asdict()
    return KeyView(
        key=name,
        admin=entry.admin,
        models=entry.models,
        share=entry.share,
        priority=entry.priority,
        running=running,
        max_running=entry.max_running,
        requests_per_minute=requests,
        tokens_per_minute=tokens,
        **sums,
    )


def using(api: UsageApi) -> list[Endpoint]:
    text = "What the key has used, and what is left of its limits; for an admin's key, of all keys"
    return [Endpoint("/usage", api.usage, text, UsageList)]
