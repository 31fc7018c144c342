"""The HTTP server: the listening socket, the event loop, and uvicorn's server with our own main loop and shutdown."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Generator
from typing import cast

from starlette.types import ASGIApp
from uvicorn.config import Config as UvicornConfig
from uvicorn.server import Server

from frontend.http.protocol import HttpProtocol
from messages.config.server import HttpConfig
from messages.errors import BootError, errors_as

LISTEN_FD = "SLUICE_LISTEN_FD"
"""Environment variable with the descriptor of a listening socket that the launcher passes on."""

TICK_S = 1.0
BACKLOG = 2048

LOOK_S, NUM_LOOKS = 0.02, 50
"""At shutdown, connections are closed after NUM_LOOKS checks without progress. Counting checks instead of seconds lets
every response be written between two of them, however busy the machine is."""

CLOSE_TIMEOUT_S = 4.0
"""Maximum time that shutdown waits for connections; the launcher waits slightly longer."""

MAX_DESCRIPTORS = 65536


class HttpServer(Server):
    """Calls `on_start` when connections are accepted, and `on_tick` then and once a second until `stop`."""

    def __init__(self, app: ASGIApp, http: HttpConfig, on_start: Callable[[], None], on_tick: Callable[[], None]):
        super().__init__(
            UvicornConfig(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                ssl_certfile=http.ssl_certfile or None,
                ssl_keyfile=http.ssl_keyfile or None,
                ssl_ca_certs=http.ssl_ca_certs or None,
                ssl_cert_reqs=ssl.CERT_REQUIRED if http.ssl_ca_certs else ssl.CERT_NONE,
            )
        )
        self._on_start = on_start
        self._on_tick = on_tick
        self._is_stopped = asyncio.Event()
        self.is_leaving = False

    @property
    def num_connections(self) -> int:
        return len(self.server_state.connections)

    @property
    def num_answering(self) -> int:
        """The number of connections on which a response is awaited or written."""
        return sum(one.is_answering for one in cast("set[HttpProtocol]", self.server_state.connections))

    def stop(self) -> None:
        """Makes `serve` close all connections and return. May be called again."""
        self.should_exit = True
        self._is_stopped.set()

    def close_idle(self) -> None:
        """Closes idle connections now and all others after their response."""
        for connection in list(self.server_state.connections):
            connection.shutdown()

    def leave(self) -> None:
        """Accepts no more connections, and closes each open one after the next response that can announce it."""
        self.is_leaving = True
        for server in self.servers:
            server.close()
        for connection in cast("list[HttpProtocol]", list(self.server_state.connections)):
            connection.finish_up()

    async def main_loop(self) -> None:
        """Replaces uvicorn's main loop, which ticks ten times a second."""
        self._on_start()
        while not await self.on_tick(0):
            self._on_tick()
            self._tick_connections()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._is_stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Replaces uvicorn's method, which has one time limit for all responses, whether or not their clients read."""
        for one in (*self.servers, *(sockets or ())):
            one.close()
        self.close_idle()
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        before, num_looks, state = None, 0, self.server_state
        while (state.connections or state.tasks) and num_looks < NUM_LOOKS and time.monotonic() < deadline_s:
            await asyncio.sleep(LOOK_S)
            now = self._progress()
            num_looks = num_looks + 1 if now == before else 0
            before = now
        for task in self.server_state.tasks:
            task.cancel()

    def _progress(self) -> tuple[int, int, int]:
        """Returns values that change as long as responses are written and read."""
        connections = cast("set[HttpProtocol]", self.server_state.connections)
        num_unsent_bytes = sum(one.num_unsent_bytes for one in connections)
        return len(connections), self.num_answering, num_unsent_bytes

    def _tick_connections(self) -> None:
        now_s = time.monotonic()
        for connection in cast("list[HttpProtocol]", list(self.server_state.connections)):
            if self.is_leaving:  # it may have been accepted just before
                connection.finish_up()
            connection.tick(now_s)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leaves signals to the process's link."""
        yield


def check_certificates(http: HttpConfig) -> None:
    """Raises `BootError` if the files for https cannot be used."""
    if not http.ssl_certfile:
        if http.ssl_keyfile or http.ssl_ca_certs:
            raise BootError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(http.ssl_certfile, http.ssl_keyfile or None, _refuse_password)
    except OSError as error:
        key_flag = f" --ssl-keyfile {http.ssl_keyfile}" if http.ssl_keyfile else ""
        raise BootError(f"--ssl-certfile {http.ssl_certfile}{key_flag}: {error.strerror or error}") from None
    with errors_as(BootError, f"--ssl-ca-certs {http.ssl_ca_certs}"):
        if http.ssl_ca_certs:
            context.load_verify_locations(http.ssl_ca_certs)


def _refuse_password() -> str:
    """Replaces OpenSSL's prompt on the terminal."""
    raise BootError("--ssl-keyfile: a key that needs a password cannot be used")


def open_listener(http: HttpConfig) -> tuple[socket.socket, bool]:
    """Returns the listening socket, and whether it was opened here. Raises `BootError` if the port is in use."""
    descriptor = os.environ.get(LISTEN_FD)
    if descriptor is not None:
        with errors_as(BootError, f"{LISTEN_FD}={descriptor} is not a listening socket", of=(ValueError, OSError)):
            return socket.socket(fileno=int(descriptor)), False
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with errors_as(BootError, f"cannot listen on {http.host} port {http.port}", "; choose another --port"):
        return socket.create_server((http.host, http.port), family=family, backlog=BACKLOG), True


def base_url(http: HttpConfig, host: str, port: int) -> str:
    """Returns the address of the server on `host` and `port`."""
    scheme = "https" if http.ssl_certfile else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def make_event_loop() -> asyncio.AbstractEventLoop:
    """Returns a uvloop event loop if uvloop supports this platform."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def raise_descriptor_limit() -> None:
    """Raises the limit of open files to the operator's hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    requested = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < requested:
        resource.setrlimit(resource.RLIMIT_NOFILE, (requested, hard))
