"""Passes requests on to the models' servers, and their responses back as they come."""

import asyncio
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from extras.models.chosen_model import find_models, read_named
from extras.models.loads import Lease, Loads
from extras.models.model_keys import ModelKeys
from extras.models.model_table import ModelTable
from extras.models.upstream import Call, Connection, UpstreamGoneError
from extras.ollama.reply import AnswerLines, Piece, chat_line, now, prompt_line
from frontend.errors import UnavailableError
from frontend.http.access import SAFE_METHODS, is_local
from frontend.http.body import read_body
from frontend.http.responses import JsonReply
from frontend.http.stream import LINE_PAUSE_S, write_body, write_until_gone
from frontend.requests.trace import RequestTrace, trace_of
from messages.config.server import HttpConfig

MAX_TRIES = 3
"""How often a request is sent if the server ends before the head of its response."""

PER_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Headers that are about one connection (RFC 9110, section 7.6.1)."""

OF_REQUESTS = PER_CONNECTION | {b"content-length", b"host", b"origin", b"expect", b"x-request-id", b"x-model-load-ns"}
OF_RESPONSES = PER_CONNECTION | {b"date"}

WATCHING = SAFE_METHODS | {"DELETE"}
"""Methods of requests that are about what a loaded model has."""

LINES = {"/api/generate": prompt_line, "/api/chat": chat_line}


class Forwarder:
    """`open`: the responses that have not been written to their end; without `watchers`, those of requests that only
    look at a loaded model."""

    def __init__(self, table: ModelTable, loads: Loads, keys: ModelKeys, http: HttpConfig, hold_s: float):
        self._table = table
        self.keys = keys
        self.loads = loads
        self.upstreams = table.upstreams
        self._max_body_bytes = http.max_body_bytes
        self.root_path = f"/{http.root_path.strip('/')}".rstrip("/")
        self._hold_s = hold_s
        self.open: set[Forwarded] = set()
        self.watchers: set[Forwarded] = set()
        self.is_draining = False

    async def run(self, request: Request) -> ASGIApp:
        """Returns the response of a model's server. Raises `RequestError`."""
        if self.is_draining and request.method not in SAFE_METHODS:
            raise UnavailableError("the server is draining and accepts no new requests", "draining")
        trace = trace_of(request.scope)
        body = await read_body(request, self._max_body_bytes, needs_type=False)
        await self.wait_known()
        named = read_named(body)
        found = find_models(self._table, request, trace.path, named)
        names = self.keys.opened(found, request.scope["headers"])
        keep_alive_s = named.keep_alive_s()
        if keep_alive_s == 0 and trace.path in LINES and not named.has_prompt:
            self.loads.unload(names[0])
            fields = {
                "model": named.named(is_ollama=True) or names[0],
                "created_at": now(),
                "done": True,
                "done_reason": "unload",
            }
            return JsonReply(LINES[trace.path](Piece(), fields))
        call = Call(request.method, self._target(request.scope), _headers(request.scope, trace), body)
        return Forwarded(self, names, call, trace, keep_alive_s)

    async def wait_known(self) -> None:
        """Waits until the host has reported its models. Raises `UnavailableError`."""
        try:
            async with asyncio.timeout(self._hold_s):
                await self._table.is_known.wait()
        except TimeoutError:
            raise UnavailableError("the models are not known yet: the process `models` starts", "not_ready") from None

    def _target(self, scope: Scope) -> bytes:
        path: bytes = scope["raw_path"]
        root = self.root_path.encode()
        if path.startswith(root + b"/"):
            path = path.removeprefix(root)
        parameters = scope["query_string"].split(b"&")
        query = b"&".join(part for part in parameters if not part.startswith(b"model="))  # it is for the router
        return path + b"?" + query if query else path


class Forwarded:
    """An ASGI response: that of the first server of `names` that does not answer 404, or else of the last."""

    def __init__(
        self, forwarder: Forwarder, names: list[str], call: Call, trace: RequestTrace, keep_alive_s: float | None
    ):
        self._keep_alive_s = keep_alive_s
        self._forwarder = forwarder
        self._names = names
        self._call = call
        self._trace = trace
        self._connection: Connection | None = None
        self._is_complete = False
        self._is_watching = call.method in WATCHING
        """It only looks at a loaded model."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = self._forwarder.watchers if self._is_watching else self._forwarder.open
        own.add(self)
        try:
            await write_until_gone(self._answer(send), receive)
        finally:
            own.discard(self)
        if not self._is_complete:
            self._trace.notes.setdefault("client", "left")

    def end(self) -> None:
        """Cuts the response off, if it has begun."""
        if self._connection is not None:
            self._connection.close()

    async def _answer(self, send: Send) -> None:
        num_tries = 0
        while True:
            name = self._names[0]
            self._trace.notes["model"] = name
            async with self._forwarder.loads.lease(name, self._keep_alive_s, is_watching=self._is_watching) as lease:
                try:
                    connection = await self._forwarder.upstreams.open(lease.url, _with_load(self._call, lease))
                except UpstreamGoneError:
                    num_tries += 1
                    self._forwarder.loads.suspect(lease)
                    if num_tries == MAX_TRIES:
                        raise UnavailableError(f"the server of {name} ended before it answered", "model_gone") from None
                    continue
                try:
                    if connection.status != 404 or len(self._names) == 1:
                        return await self._pass_on(connection, lease, send)
                finally:
                    self._forwarder.upstreams.release(lease.url, connection)
            del self._names[0]

    async def _pass_on(self, connection: Connection, lease: Lease, send: Send) -> None:
        trace, self._connection = self._trace, connection
        trace.status = connection.status
        headers = [(name, value) for name, value in connection.headers if name not in OF_RESPONSES]
        if lease.load_ms is not None:
            trace.notes["load_ms"] = round(lease.load_ms, 1)
            headers.append((b"x-model-load-ms", b"%.1f" % lease.load_ms))
        trace.notes["head_ms"] = round((time.monotonic_ns() - trace.received_ns) / 1e6, 1)
        await send({"type": "http.response.start", "status": connection.status, "headers": headers})
        has_lines = (b"content-type", AnswerLines.content_type) in connection.headers
        begun = b""
        while not self._is_complete:
            try:
                piece, self._is_complete = await connection.read()
            except UpstreamGoneError:  # the client's connection is closed without the end of the response
                trace.notes["client"] = "cut off"
                self._forwarder.loads.suspect(lease)
                return
            if has_lines:  # each in a chunk of its own, as its server sends them
                *lines, begun = (begun + piece).split(b"\n")
                for index, line in enumerate(lines):
                    await asyncio.sleep(LINE_PAUSE_S if index else 0)
                    await write_body(send, line + b"\n", is_last=False)
                piece, begun = (begun, b"") if self._is_complete else (b"", begun)
            if piece or self._is_complete:
                await write_body(send, piece, is_last=self._is_complete)


def _headers(scope: Scope, trace: RequestTrace) -> list[tuple[bytes, bytes]]:
    """Returns the headers for a model's server, which must not take a client from elsewhere for a local one."""
    provided: list[tuple[bytes, bytes]] = scope["headers"]
    listed = {name.strip().lower() for key, value in provided if key == b"connection" for name in value.split(b",")}
    headers = [(name, value) for name, value in provided if name not in OF_REQUESTS | listed]
    if not is_local(client := scope["client"], scope["scheme"], provided):
        headers.append((b"x-forwarded-for", (client or ("unknown",))[0].encode()))
    return [*headers, (b"x-request-id", trace.request_id.encode())]


def _with_load(call: Call, lease: Lease) -> Call:
    """Returns the call with the time that it has waited for the model's load, which Ollama's replies show."""
    if lease.load_ms is None:
        return call
    return call._replace(headers=[*call.headers, (b"x-model-load-ns", b"%d" % (lease.load_ms * 1e6))])
