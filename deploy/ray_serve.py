"""Sluice behind Ray Serve: a replica runs a whole server (`launch.py`) and forwards requests to it.

    .venv/bin/pip install -e '.[ray-serve]'
    serve run deploy.ray_serve:app flags="--model DIR --dtype bfloat16" max_replicas=4 num_cpus=8

Use it if you already run Ray Serve, which chooses the replica of a request and the number of replicas, by open
requests. Each event of a stream passes Serve's proxy; with `launch.py --ray` none does.
"""

import importlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from runtime.lifeline import ask_for_death_signal
from runtime.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[1]
DRAIN_S = 30
"""Time for open requests when a replica is removed. Serve waits for them, then the server does."""

POLL_S = 0.05
HOP_BY_HOP = {"connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "host"}
"""Header fields that end at the proxy (RFC 9110, 7.6.1), and the field that names it."""

VIA = ("via", "1.1 ray-serve")
"""Marks requests as forwarded: their client is not on loopback, so the operator's commands are refused."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `serve run` (NAME=VALUE), or of a configuration file under `args`."""

    flags: str = ""
    """Flags of launch.py, as in a shell."""
    min_replicas: int = 1
    max_replicas: int = 1
    target_ongoing_requests: int = 32
    """Open requests of a replica: above this number Serve adds a replica, below it removes one."""
    max_ongoing_requests: int = 256
    """Most open requests of a replica; others wait in Serve's queue."""
    num_cpus: float = 1
    """CPUs of a replica, as Ray counts them. On a CPU, set `--cpu-threads` to the same number in `flags`."""
    num_gpus: float = 0


class Server:
    """A replica: a server of its own, on a free port of loopback."""

    def __init__(self, flags: str):
        """Returns when the server is ready. Raises `RuntimeError` if it exits first; its log is Serve's."""
        self._directory = tempfile.TemporaryDirectory(prefix="sluice-serve-", ignore_cleanup_errors=True)
        run_dir, own_pid = RunDir(Path(self._directory.name) / "run"), os.getpid()
        command = [sys.executable, str(ROOT / "launch.py"), "--run-dir", str(run_dir.path), "--host", "127.0.0.1"]
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--drain-timeout-s", str(DRAIN_S), *shlex.split(flags)],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: ask_for_death_signal(own_pid),  # noqa: PLW1509 (one prctl call)
        )
        while not _is_ready(run_dir):
            self.check_health()
            time.sleep(POLL_S)
        self.client = httpx.AsyncClient(base_url=_url_of(run_dir), timeout=None, limits=httpx.Limits(), trust_env=False)

    def check_health(self) -> None:
        """Raises `RuntimeError` if the launcher has exited. The launcher itself replaces the other processes."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the server exited with code {self._process.returncode}; see its log")

    async def __call__(self, request: Request) -> StreamingResponse:
        """Forwards the request. A client that disconnects cancels this, which closes the connection to the server."""
        url = httpx.URL(path=request.scope["path"].removeprefix(request.scope.get("root_path", "")) or "/")
        passed = self.client.build_request(
            request.method,
            url.copy_with(query=request.scope["query_string"]),
            headers=[*(pair for pair in request.headers.items() if pair[0] not in HOP_BY_HOP), VIA],
            content=await request.body(),
        )
        reply = await self.client.send(passed, stream=True)
        response = StreamingResponse(_content_of(reply), reply.status_code)
        response.raw_headers = [pair for pair in reply.headers.raw if pair[0].decode().lower() not in HOP_BY_HOP]
        return response

    def __del__(self):
        self.close()

    def close(self) -> None:
        """Drains and stops the server, and removes all its files."""
        self._process.terminate()
        self._process.wait()
        self._directory.cleanup()


def _url_of(run_dir: RunDir) -> str:
    return run_dir.address_file.read_text(encoding="ascii").strip()


def _is_ready(run_dir: RunDir) -> bool:
    try:
        return httpx.get(f"{_url_of(run_dir)}/health", trust_env=False).is_success
    except (FileNotFoundError, httpx.HTTPError, httpx.UnsupportedProtocol):
        return False


async def _content_of(reply: httpx.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in reply.aiter_raw():
            yield piece
    finally:
        await reply.aclose()


def app(arguments: dict[str, Any]) -> Any:
    """Returns Serve's application. Raises `msgspec.ValidationError` for an argument that there is not."""
    requested = msgspec.convert(arguments, Arguments, strict=False)
    serve: Any = importlib.import_module("ray.serve")
    deployment = serve.deployment(
        name="Sluice",
        ray_actor_options={"num_cpus": requested.num_cpus, "num_gpus": requested.num_gpus},
        max_ongoing_requests=requested.max_ongoing_requests,
        graceful_shutdown_timeout_s=2 * DRAIN_S,
        autoscaling_config={
            "min_replicas": requested.min_replicas,
            "max_replicas": requested.max_replicas,
            "target_ongoing_requests": requested.target_ongoing_requests,
        },
    )
    return deployment(Server).bind(requested.flags)
