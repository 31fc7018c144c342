"""`launch.py top`: the live page in a terminal, from the same stream."""

import argparse
import http.client
import json
import os
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from extras.top.frame import draw_frame
from messages.config.server import HttpConfig
from runtime.lifeline import has_launcher
from runtime.terminal import without_controls
from supervisor.client.admin_client import AdminClient
from supervisor.client.running import NoServerError, RunningServer

FILE_SIZE = (140, 40)
"""Columns and lines where the output is no terminal; there are then as many lines as there have to be."""

MAX_STEPS = 512
READ_TIMEOUT_S = 15.0
RETRY_S = 1.0
FULL_SCREEN, NORMAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, ERASE_REST = "\x1b[H", "\x1b[K\n"

Json = dict[str, Any]

CHANGING = ("processes", "edges", "requests", "steps")
"""Parts of an event in which null means that something is gone."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(execute=show_top)


def show_top(options: argparse.Namespace, server: RunningServer, line: AdminClient) -> int:
    """Redraws until Ctrl-C or the end of the server; without a viewer (no terminal, --json), shows it once.

    Returns the exit code 0. Raises `NoServerError` if the server ends.
    """
    is_once = options.json or not sys.stdout.isatty()
    title = ", ".join(server.config.facts.served_names)
    if not is_once:
        sys.stdout.write(FULL_SCREEN)
    try:
        for state in watch(server):
            if is_once and any(process["cpu_percent"] is None for process in state["processes"].values()):
                continue  # there is no rate yet
            size = shutil.get_terminal_size(FILE_SIZE)
            if options.json:
                print(json.dumps(state))
            elif is_once:
                print(without_controls("\n".join(draw_frame(state, title, size.columns, None))))
            else:
                lines = draw_frame(state, title, size.columns, size.lines - 1)
                sys.stdout.write(f"{HOME}{''.join(without_controls(text) + ERASE_REST for text in lines)}\x1b[J")
            sys.stdout.flush()
            if is_once:
                break
    except KeyboardInterrupt:
        return 0
    finally:
        if not is_once:
            sys.stdout.write(NORMAL_SCREEN)
            sys.stdout.flush()
    return 0


def watch(server: RunningServer) -> Iterator[Json]:
    """Yields the server's state after each event, also across restarts of the frontend. Raises `NoServerError`."""
    state: Json = {}
    while has_launcher(server.run_dir):
        try:
            for state in _read_stream(server):
                yield state
        except (OSError, http.client.HTTPException) as error:
            reason = f": {error}"
        else:
            reason = ""
        if state:
            yield lost(state)
        time.sleep(RETRY_S)
        if not has_launcher(server.run_dir):
            raise NoServerError(f"the server in {server.run_dir.path} has ended{reason}")
    raise NoServerError(f"no server runs in {server.run_dir.path}")


def _read_stream(server: RunningServer) -> Iterator[Json]:
    """Raises `NoServerError` if the stream is refused, for want of a key for example."""
    connection = _connect(server)
    try:
        connection.request("GET", "/live", headers=_key_headers(server.config.http))
        reply = connection.getresponse()
        if reply.status == 503:
            return
        if reply.status != 200:
            hint = "give --model NAME; " if reply.status == 400 else ""  # several models: not exactly one is loaded
            raise NoServerError(f"{hint}/live answered {reply.status}: {reply.read(500).decode(errors='replace')}")
        state: Json = {name: {} for name in CHANGING}
        while text := reply.readline():
            if text.startswith(b"data: {"):
                merge(state, json.loads(text[6:]))
                yield state
    finally:
        connection.close()


def lost(state: Json) -> Json:
    """Returns the status after the end of the stream: no process is known to serve."""
    unknown = {"state": "unknown", "phase": "", "busy_since_ns": 0, "cpu_percent": None}
    processes = {name: {**process, **unknown} for name, process in state["processes"].items()}
    return {**state, "edges": {}, "processes": processes}


def merge(state: Json, event: Json) -> None:
    """Changes `state` by an event of `/live`."""
    for name, value in event.items():
        if name in CHANGING:
            state[name] = {key: one for key, one in {**state[name], **value}.items() if one is not None}
        else:
            state[name] = value
    state["steps"] = dict(list(state["steps"].items())[-MAX_STEPS:])
    state |= {"frontends_missing": event.get("frontends_missing", 0), "stages": event.get("stages", [])}


def _connect(server: RunningServer) -> http.client.HTTPConnection:
    address = server.run_dir.address_file.read_text(encoding="utf-8").strip()
    if address.startswith("unix:"):
        return UnixConnection(address.removeprefix("unix:"), timeout=READ_TIMEOUT_S)
    url = urlsplit(address)
    assert url.hostname is not None
    if url.scheme == "http":
        return http.client.HTTPConnection(url.hostname, url.port, timeout=READ_TIMEOUT_S)
    # The very certificate is trusted, whatever its issuer.
    context = ssl.create_default_context(cafile=server.config.http.ssl_certfile)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return http.client.HTTPSConnection(url.hostname, url.port, timeout=READ_TIMEOUT_S, context=context)


class UnixConnection(http.client.HTTPConnection):
    """To a Unix socket; the server of a model among several listens on one."""

    def __init__(self, path: str, *, timeout: float):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _key_headers(config: HttpConfig) -> dict[str, str]:
    """Who may read the run directory may know the keys."""
    if not config.api_key:
        key = os.environ.get("SLUICE_API_KEY")
        return {"Authorization": f"Bearer {key}"} if key else {}
    key, lines = config.api_key[0], list[str]()
    if key.startswith("@"):
        lines = Path(key[1:]).read_text(encoding="utf-8").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return {"Authorization": f"Bearer {keys[0] if keys else key}"}
