"""`GET /requests` and `GET /requests/{id}`: the stage of each request, its duration, and what the request waits for.

The reply uses only what the frontends know. No process of the ring is asked, so it never waits for a step.
"""

import time
from collections.abc import Iterable, Iterator
from typing import cast, get_args

import msgspec
from starlette.requests import Request

from frontend.api.operate.aborts import names_of
from frontend.api.operate.request_view import (
    RequestLine,
    RequestState,
    RequestTimeline,
    make_line,
    make_timeline,
    state_of,
)
from frontend.api.operate.wait_reasons import WaitReasons
from frontend.errors import not_found
from frontend.http.query import read_count, read_number
from frontend.http.responses import JsonReply
from frontend.http.stream import OpenStreams
from frontend.requests.generation import Generation
from frontend.requests.timeline import Stage, Timeline
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.errors import MAX_QUOTED_CHARS, RequestError, bad_request, quoted
from messages.ring.peers import FindRequests, FoundRequest, FoundRequests

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000

STATES: tuple[RequestState, ...] = get_args(RequestState)
STAGES: tuple[Stage, ...] = get_args(Stage)

_encoder = msgspec.json.Encoder()


class RequestsReply(msgspec.Struct, frozen=True):
    """Open requests, oldest first, then ended ones, latest first.

    `num_found` requests match the query; `requests` has at most `limit` of them. `scheduler_heard_s`: seconds since
    the scheduler's last message, null if there was none.
    """

    requests: list[RequestLine]
    num_found: int
    scheduler_heard_s: float | None
    frontends_missing: int
    """Number of frontends that did not answer in time; their requests are missing."""


class RequestReply(msgspec.Struct, frozen=True):
    """The choices of an HTTP request, or the single choice with the uid."""

    choices: list[RequestTimeline]
    scheduler_heard_s: float | None
    frontends_missing: int


class RequestsApi:
    def __init__(self, service: Service, streams: OpenStreams):
        self._service = service
        self._streams = streams
        service.peers.register(FindRequests, self.find)

    async def list_requests(self, request: Request) -> JsonReply:
        """Raises `RequestError` (400) if the query is invalid."""
        query = _read_query(dict(request.query_params))
        query = msgspec.structs.replace(query, only_of=trace_of(request.scope).client.only_of)
        found, num_missing = await self.find_everywhere(query)
        lines = [msgspec.Raw(each.shown) for each in found.requests]  # as they were encoded
        return JsonReply(
            RequestsReply(cast("list[RequestLine]", lines), found.num_found, _seconds_since_report(found), num_missing)
        )

    async def show(self, request: Request) -> JsonReply:
        """Raises `RequestError` (404) if the request is neither open nor among the latest ended ones."""
        name: str = request.path_params["id"]
        uids = (int(name),) if name.isascii() and name.isdigit() and len(name) < 17 else ()
        only_of = trace_of(request.scope).client.only_of
        query = FindRequests(uids, names_of(name), limit=MAX_LIMIT, is_whole=True, only_of=only_of)
        found, num_missing = await self.find_everywhere(query)
        if not found.requests:
            raise _unknown(name, num_missing)
        choices = [msgspec.json.decode(each.shown, type=RequestTimeline) for each in found.requests]
        choices.sort(key=lambda shown: shown.uid)
        return JsonReply(RequestReply(choices, _seconds_since_report(found), num_missing))

    async def find_everywhere(self, query: FindRequests) -> tuple[FoundRequests, int]:
        """Returns the requests of all frontends, in order, and the number of frontends that did not answer."""
        own = self.find(query)
        others = await self._service.peers.ask_all(query, FoundRequests)
        parts = [own, *others.by_name.values()]
        requests = [each for part in parts for each in part.requests]
        requests.sort(key=lambda each: (each.has_ended, -each.received_ns if each.has_ended else each.received_ns))
        last_report_ns = max(part.last_report_ns for part in parts)
        num_found = sum(part.num_found for part in parts)
        return FoundRequests(tuple(requests[: query.limit]), num_found, last_report_ns), others.num_missing

    async def find_names(self, uids: Iterable[int]) -> dict[int, str]:
        """Returns the public ids of the requests that are open or ended recently, by uid."""
        requested = tuple(sorted(set(uids) - {0}))
        if not requested:
            return {}
        found, _ = await self.find_everywhere(FindRequests(uids=requested, limit=len(requested)))
        lines = [msgspec.json.decode(each.shown, type=RequestLine) for each in found.requests]
        return {line.uid: line.request_id for line in lines}

    def find_open(self) -> FoundRequests:
        """Returns the whole timelines of this frontend's open requests, limited to the oldest."""
        num_open = self._service.timelines.num_live
        return self.find(FindRequests(limit=min(num_open, MAX_LIMIT), is_whole=True))

    def find(self, query: FindRequests) -> FoundRequests:
        """Returns the matching requests of this frontend."""
        reasons, frontend = WaitReasons(self._service, self._streams), self._service.name
        found: list[FoundRequest] = []
        num_found = 0
        now_ns, names = time.monotonic_ns(), frozenset[int | str]((*query.uids, *query.request_ids))
        for timeline, generation in self._all():
            if _is_like(timeline, query, names, now_ns):
                num_found += 1
                if len(found) < query.limit:
                    waits = None if generation is None else reasons.find(generation)
                    shown = make_line(timeline, generation, waits, frontend=frontend)
                    if query.is_whole:
                        shown = make_timeline(shown, timeline, self._service.timelines.step_ends(timeline))
                    found.append(FoundRequest(timeline.received_ns, generation is None, _encoder.encode(shown)))
        return FoundRequests(tuple(found), num_found, self._service.timelines.last_report_ns)

    def _all(self) -> Iterator[tuple[Timeline, Generation | None]]:
        for generation in self._service.timelines.live():
            yield generation.timeline, generation
        for timeline in self._service.timelines.ended():
            yield timeline, None


def _is_like(timeline: Timeline, query: FindRequests, names: frozenset[int | str], now_ns: int) -> bool:
    if query.only_of not in (None, timeline.key):
        return False
    if names:
        return timeline.uid in names or timeline.request_id in names
    if query.state and state_of(timeline) != query.state:
        return False
    if query.stage and (timeline.outcome is not None or timeline.stage != query.stage):
        return False
    return (timeline.end_ns or now_ns) - timeline.received_ns >= query.min_age_s * 1e9


def _read_query(provided: dict[str, str]) -> FindRequests:
    """Raises `RequestError` (400)."""
    unknown = sorted(provided.keys() - {"state", "stage", "min_age_s", "limit"})
    if unknown:
        raise bad_request(
            f"unknown parameter {quoted(unknown[0])}: send state, stage, min_age_s or limit",
            unknown[0][:MAX_QUOTED_CHARS],
        )
    for name, values in (("state", STATES), ("stage", STAGES)):
        if provided.get(name, values[0]) not in values:
            raise bad_request(f"{name} must be one of {', '.join(values)}, got {quoted(provided[name])}", name)
    return FindRequests(
        state=provided.get("state", ""),
        stage=provided.get("stage", ""),
        min_age_s=read_number(provided, "min_age_s", 0.0, 1e9),
        limit=read_count(provided, "limit", DEFAULT_LIMIT, MAX_LIMIT),
    )


def _seconds_since_report(found: FoundRequests) -> float | None:
    return round((time.monotonic_ns() - found.last_report_ns) / 1e9, 3) if found.last_report_ns else None


def _unknown(name: str, num_missing: int) -> RequestError:
    missing = f"; {num_missing} frontends did not answer" if num_missing else ""
    message = f"No request {quoted(name)} is open or among the latest 1000 that have ended{missing}"
    return not_found(message, "request_not_found")
