"""The configurations for proxies in deploy/proxies, with the real programs in front of a server."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.free_port import find_free_port
from tests.ring.client import TIMEOUT_S, RingClient

PROXIES = Path(__file__).resolve().parents[2] / "deploy" / "proxies"
NAME = "llm.example"
OPERATOR = ("/admin/status", "/cache/tree", "/start_profile", "/stop_profile", "/v1/load_lora_adapter")
REQUEST: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 80, "ignore_eos": True, "stream": True}
MAX_TRIES = 20
NGINX = """daemon off; pid {folder}/pid; error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/sluice.conf;
}}
"""

pytestmark = pytest.mark.ring


def replaced(file: str, *pairs: tuple[str, str]) -> str:
    text = (PROXIES / file).read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def nginx(folder: Path, port: int, server: str) -> list[str]:
    text = replaced(
        "nginx.conf", ("listen 80;", f"listen 127.0.0.1:{port};"), ("server 127.0.0.1:8000;", f"server {server};")
    )
    (folder / "sluice.conf").write_text(text)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return ["-c", str(folder / "nginx.conf"), "-e", "stderr"]


def caddy(folder: Path, port: int, server: str) -> list[str]:
    pairs = (f"\n{NAME} {{", f"\nhttp://{NAME}:{port} {{"), ("127.0.0.1:8000", server)
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + replaced("Caddyfile", *pairs))
    return ["run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, plain_ring: RingClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a proxy in front of the server."""
    configure: Callable[[Path, int, str], list[str]] = request.param
    name = configure.__name__
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip({"nginx": "needs nginx", "caddy": "needs caddy"}[name])
    folder, port = tmp_path_factory.mktemp(name), find_free_port()
    arguments = configure(folder, port, urlsplit(plain_ring.url).netloc)
    log, environment = folder / "log", {**os.environ, "HOME": str(folder)}
    with log.open("wb") as output, subprocess.Popen([program, *arguments], env=environment, stderr=output) as process:
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 30
            while not is_up(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ping", headers={"Host": NAME}).status_code == 200
    except httpx.TransportError:
        return False


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Host": NAME}, timeout=60)


def test_events_arrive_as_they_are_sent(proxy: str, plain_ring: RingClient) -> None:
    names = (f"{urlsplit(proxy).port}-{number}" for number in range(MAX_TRIES))
    assert any(have_arrived_in_mid_stream(proxy, plain_ring, name) for name in names), "no stream was stopped in time"
    with client_of(proxy) as client, client.stream("POST", "/generate", json=REQUEST) as reply:
        next(reply.iter_raw())
    plain_ring.wait_until_empty()  # the client's end reaches the server


def have_arrived_in_mid_stream(proxy: str, ring: RingClient, name: str) -> bool:
    """Stops the scheduler in mid-stream, and waits for the events so far. Returns False if the stream had ended."""
    pid = ring.status("scheduler")["pid"]

    def num_tokens() -> int:
        (choice,) = httpx.get(f"{ring.url}/requests/{name}", timeout=TIMEOUT_S).json()["choices"]
        return choice["output_tokens"]

    with client_of(proxy) as client, client.stream("POST", "/generate", json={**REQUEST, "request_id": name}) as reply:
        assert reply.status_code == 200
        chunks = reply.iter_raw()
        arrived = next(chunks)
        os.kill(pid, signal.SIGSTOP)
        try:
            while (num_sent := num_tokens()) > arrived.count(b"data: "):
                arrived += next(chunks)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert b"".join([arrived, *chunks]).count(b"data: ") == REQUEST["max_tokens"] + 1
    return num_sent < REQUEST["max_tokens"]


def test_the_operators_paths_end_at_the_proxy(proxy: str) -> None:
    with client_of(proxy) as client:
        statuses = {path: client.get(path).status_code for path in OPERATOR}
        assert statuses == dict.fromkeys(OPERATOR, 404)
        assert client.get("/health").status_code == 200


def test_a_body_within_the_limits_passes(proxy: str) -> None:
    with client_of(proxy) as client:
        reply = client.post("/tokenize", json={"prompt": "word " * 200_000})
        assert reply.status_code != 413 or reply.headers["content-type"].startswith("application/json"), (
            "the server's own"
        )
