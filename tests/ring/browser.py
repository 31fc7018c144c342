"""A headless Chromium and web pages, for tests of attacks from pages on a server on the same machine."""

import functools
import http.server
import json
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PAGE_TIMEOUT_S = 120.0
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
FLAGS += ("--disable-background-networking", "--no-proxy-server", "--remote-debugging-port=0")
PAGE = (Path(__file__).parent / "page.html").read_text(encoding="utf-8")

Results = dict[str, tuple[str, int, str]]
"""By the name of the attempt: the type of the reply (`failed` for none), its status and the beginning of its text."""


def require_browser() -> str:
    """Returns the program; skips the test if this machine has none."""
    found = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs chromium, to open web pages in")
    return found


class Site:
    """A web site on a port of this machine: `/page` runs `script` and reports the result.

    Other requests are forwarded to `target` byte for byte, as if the site's name pointed there.
    """

    def __init__(self, script: str, target: tuple[str, int]):
        self.script = script
        self.target = target
        self.results: queue.Queue[Results] = queue.Queue()
        page = functools.partial(_Page, site=self)
        self._servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), page) for _ in range(2)]
        self._threads = [threading.Thread(target=server.serve_forever) for server in self._servers]
        self.port, self.inbox_port = (server.server_port for server in self._servers)
        """Results have their own port, because a connection to the first one stays forwarded."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(10.0)


class _Page(http.server.BaseHTTPRequestHandler):
    def __init__(self, *arguments: Any, site: Site):
        self._site = site
        super().__init__(*arguments)

    def handle(self) -> None:
        begin = self.connection.recv(64, socket.MSG_PEEK)
        if begin.startswith((b"GET /page", b"POST /page")):
            super().handle()
        elif begin:
            _pass_on(self.connection, self._site.target)

    def do_GET(self) -> None:
        content = PAGE.replace("SCRIPT", self._site.script).replace("INBOX_PORT", str(self._site.inbox_port)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if "sandboxed" in self.path:
            self.send_header("Content-Security-Policy", "sandbox allow-scripts allow-forms")
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        results = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self._site.results.put({name: tuple(seen) for name, seen in results.items()})

    def log_message(self, format: str, *args: object) -> None:
        pass


def _pass_on(client: socket.socket, target: tuple[str, int]) -> None:
    """Copies in both directions until both sides have ended."""
    with socket.create_connection(target) as server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def _running(browser: str, url: str, flags: Sequence[str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="sluice-browser-", ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", *flags, url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def visit(browser: str, site: Site, url: str, *flags: str) -> Results:
    """Opens the page of `site` at `url` and returns the result of its script. Fails at the deadline."""
    with _running(browser, url, flags):
        return site.results.get(timeout=PAGE_TIMEOUT_S)
