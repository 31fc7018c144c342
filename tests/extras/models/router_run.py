"""A router with a launcher, a host and models' servers that the test plays."""

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from extras.keys.config import KeysConfig
from extras.models.config import ModelEntry, ModelsConfig
from extras.models.messages import DescribeModel, Description, ModelReport, Models, StartModel, StopModel, ToHost
from messages.channels import AskServer, Waiter
from messages.config.server import Config, HttpConfig, RunConfig, SchedulingConfig
from messages.control.processes import Ready
from tests.fake_launcher import FakeLauncher
from tests.frontend.frontend_run import FACTS, wait_until

TIMEOUT_S = 90.0
GIB = 2**30
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Arrived:
    """A request at a model's server; the test writes the response to its connection."""

    def __init__(self, head: bytes, body: bytes, connection: socket.socket):
        first, *lines = head.decode().split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = body
        self.connection = connection
        self.is_done = threading.Event()

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)

    def answer(self, data: bytes = OK) -> None:
        self.send(data)
        self.is_done.set()

    def cut(self) -> None:
        """Ends the connection."""
        self.connection.shutdown(socket.SHUT_RDWR)
        self.is_done.set()

    def wait_gone(self) -> None:
        """Waits until the router has closed the connection."""
        self.connection.settimeout(TIMEOUT_S)
        with contextlib.suppress(ConnectionResetError):
            assert self.connection.recv(1) == b""
        self.is_done.set()


LAST_CHUNK = b"0\r\n\r\n"
LOADING = 503, {"status": "starting", "processes": {"scheduler": {"phase": "reading weights", "fraction": 0.5}}}
READY = 200, {"status": "ready", "processes": {}}


class StandIn:
    """The server of a model: it answers `/health` by itself and keeps all other requests for the test."""

    def __init__(self, health: tuple[int, Any], path: Path):
        self.health = health
        self.num_looks = 0
        self.arrived: queue.Queue[Arrived] = queue.Queue()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.url = f"unix:{path}"
        self._connections: list[socket.socket] = []
        self._run(self._accept)

    def _run(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as reader:
            while head := self._read_head(reader):
                if head.startswith(b"GET /health "):
                    self.num_looks += 1
                    status, fields = self.health
                    body = json.dumps(fields).encode()
                    connection.sendall(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
                    continue
                arrived = Arrived(head, self._read_body(head, reader), connection)
                self.arrived.put(arrived)
                arrived.is_done.wait(TIMEOUT_S)

    def _read_head(self, reader: Any) -> bytes:
        lines: list[bytes] = []
        while (line := reader.readline()) not in (b"\r\n", b""):
            lines.append(line.strip())
        return b"\r\n".join(lines)

    def _read_body(self, head: bytes, reader: Any) -> bytes:
        lines = [line.lower() for line in head.split(b"\r\n")]
        length = next((line.split()[1] for line in lines if line.startswith(b"content-length:")), b"0")
        return reader.read(int(length))

    def take(self) -> Arrived:
        """Returns the next request."""
        return self.arrived.get(timeout=TIMEOUT_S)

    def end(self) -> None:
        """Ends as a process does that is killed: all connections close, and none is accepted."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.close_connections()

    def close_connections(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class RouterRun:
    """The process with the models `sizes`, in GiB, of which `memory_gb` fit. `asked` has what it asked the host for.

    The host starts a `StandIn` for each model to load unless `starts` is cleared.
    """

    def __init__(
        self,
        sizes: dict[str, float] | None = None,
        memory_gb: float = 4,
        http: HttpConfig | None = None,
        hold_s: float = 15,
        max_waiting: int = 100,
        preloaded: str = "",
        flags: tuple[str, ...] = (),
        flags_of: dict[str, tuple[str, ...]] | None = None,
        api_keys: str = "",
    ):
        self.servers: dict[str, StandIn] = {}
        self.asked: queue.Queue[ToHost] = queue.Queue()
        self.starts = True
        self.health: tuple[int, Any] = READY
        """What servers answer to `/health` at first."""
        sizes = sizes or {"a": 1, "b": 1}
        self.reports = {name: ModelReport(name, Description("", int(size * GIB), 0)) for name, size in sizes.items()}
        own = dict.fromkeys(sizes, flags) | (flags_of or {})
        entries = tuple(
            ModelEntry(name=name, flags=own[name], keep_alive_s=-1.0, preload=name == preloaded) for name in sizes
        )
        section = ModelsConfig(models=("x",), models_memory_gb=memory_gb, entries=entries)
        config = Config(
            http=http or HttpConfig(port=0),
            run=RunConfig(restart_hold_s=hold_s),
            scheduling=SchedulingConfig(max_queued_requests=max_waiting),
            facts=FACTS,
        )
        config = KeysConfig(api_keys=(api_keys, f"{api_keys}.usage")).put_into(config) if api_keys else config
        self.launcher = FakeLauncher(section.put_into(config))
        self._lock = threading.Lock()
        self._next_pid = 1
        self._channel: AskServer[ToHost] = AskServer(self.launcher.run_dir.socket("models"), ToHost)
        self._wake, self._woken = socket.socketpair()
        self._watchers: set[bytes] = set()
        self._thread = threading.Thread(target=self._host, daemon=True)

    def __enter__(self) -> Self:
        self.launcher.__enter__()
        self._thread.start()
        self.launcher.start("frontend", module="extras.models.router")
        self.launcher.wait_for("frontend", Ready, TIMEOUT_S)
        self.url = self.launcher.run_dir.address_file.read_text(encoding="utf-8")
        self.client = httpx.Client(base_url=self.url, timeout=TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        try:
            self.launcher.__exit__(kind, error, trace)
        finally:
            self._wake.close()
            self._thread.join()
            for server in self.servers.values():
                server.end()

    # The host, in a thread.

    def _host(self) -> None:
        waiter = Waiter()
        waiter.add_channel(self._channel)
        waiter.add_descriptor(self._woken.fileno())
        reported: Models | None = None
        while self._woken.fileno() not in waiter.wait(TIMEOUT_S) or self._woken.recv(100):
            for identity, message in self._channel.receive():
                self._watchers.add(identity)
                if isinstance(message, StartModel | StopModel | DescribeModel):
                    self.asked.put(message)
                    if isinstance(message, StartModel) and self.starts:
                        self.start(message.name)
                    elif isinstance(message, StopModel):
                        self.end(message.name)
                else:
                    reported = None
            with self._lock:
                models = Models(tuple(self.reports.values()))
            if models != reported:
                reported = models
                for identity in self._watchers:
                    self._channel.send_to(identity, models)
        self._channel.close()
        self._woken.close()

    def report(self, name: str, **fields: Any) -> None:
        with self._lock:
            self.reports[name] = msgspec.structs.replace(self.reports[name], **fields)
        self._wake.send(b"x")

    def start(self, name: str) -> StandIn:
        """Starts the model's server; the router learns of it."""
        self._next_pid += 1
        server = StandIn(self.health, self.launcher.run_dir.path / f"{self._next_pid}")
        self.servers[name] = server
        run_dir = self.launcher.run_dir.path / name
        run_dir.mkdir(exist_ok=True)
        config = Config(facts=msgspec.structs.replace(FACTS, served_names=(name, f"other/{name}")))
        (run_dir / "config.json").write_bytes(msgspec.json.encode(config))
        self.report(name, process="running", pid=self._next_pid, url=server.url, run_dir=str(run_dir), error="")
        return server

    def end(self, name: str, error: str = "") -> None:
        """Ends the model's server."""
        self.servers.pop(name).end()
        self.report(name, process="none", pid=0, url="", error=error)

    def next_order(self, kind: type[StartModel] | type[StopModel]) -> str:
        """Returns the model that the router asks the host about next."""
        message = self.asked.get(timeout=TIMEOUT_S)
        assert isinstance(message, kind)
        return message.name

    # Clients.

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def load(self, name: str) -> StandIn:
        """Loads a model, and returns its server when the router knows that it serves."""
        assert self.client.post("/models/load", json={"model": name}).json() == {"success": True}
        wait_until(lambda: self.state(name)["state"] == "loaded")
        return self.servers[name]

    def status(self) -> str:
        """Retries if the router was closing the persistent connection, as a draining one does."""
        try:
            return self.client.get("/health").json()["status"]
        except httpx.TransportError:
            return self.client.get("/health").json()["status"]

    def state(self, name: str) -> dict[str, Any]:
        return self.client.get("/health").json()["models"][name]

    def gauge(self, name: str) -> float:
        return self.client.get("/health").json()["processes"]["frontend"]["gauges"][name]

    def next_server(self, name: str, before: StandIn | None = None) -> StandIn:
        """Returns the server that has been started after `before`."""
        wait_until(lambda: self.servers.get(name) not in (None, before))
        return self.servers[name]

    @contextlib.contextmanager
    def ask(
        self,
        body: Any,
        path: str = "/v1/completions",
        method: str = "POST",
        headers: dict[str, str] | None = None,
        is_streamed: bool = False,
    ) -> Iterator["Asked"]:
        """Sends a request in a thread, so that the test can answer as the model's server."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        headers = {"Content-Type": "application/json", **(headers or {})}
        request = self.client.build_request(method, path, content=content, headers=headers)
        asked = Asked(lambda: self.client.send(request, stream=is_streamed))
        yield asked
        asked.thread.join(TIMEOUT_S)
        if is_streamed:
            asked.leave()


class Asked:
    """A request in a thread of its own."""

    def __init__(self, call: Any):
        self._replies: queue.Queue[Any] = queue.Queue()
        self._reply: Any = None
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._replies.put(self._call())
        except Exception as error:
            self._replies.put(error)

    def reply(self) -> Any:
        """Returns the response, or the exception of the client."""
        if self._reply is None:
            self._reply = self._replies.get(timeout=TIMEOUT_S)
        return self._reply

    def pieces(self) -> Iterator[bytes]:
        return self.reply().iter_raw()

    def leave(self) -> None:
        self.reply().close()
