"""Keys with names on a real server of two frontends, with the clients that people use."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from extras.keys.key_file import hash_of
from supervisor.python_process import ROOT
from tests.ring.client import BARD_DIR, RingClient
from tests.ring.conftest import Start
from tests.ring.model_ring import wait_for

pytestmark = pytest.mark.ring

FIELDS = {
    "free": "",
    "rich": "requests_per_minute = 100",
    "tokens": "tokens_per_minute = 40",
    "steady": "requests_per_minute = 30",
    "poor": "requests_per_minute = 1",
    "poorer": "requests_per_minute = 1",
    "chief": "admin = true",
}
TIMEOUT_S = 60.0
MAX_TRIES = 5


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text("".join(f'[{name}]\nhash = "{hash_of(name)}"\n{text}\n' for name, text in FIELDS.items()))
    return file


@pytest.fixture(scope="module")
def ring(start_ring: Start, key_file: Path) -> RingClient:
    flags = ("--served-model-name", "m", "--frontend-workers", "2", "--max-restarts-per-min", "100")
    return start_ring(BARD_DIR, *flags, "--api-keys", str(key_file))


@pytest.fixture
def client(ring: RingClient) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=ring.url, timeout=TIMEOUT_S, headers={"Authorization": "Bearer chief"}) as client:
        yield client


def generate(url: str, key: str, **fields: Any) -> httpx.Response:
    """Sends one request on a connection of its own."""
    body = {"prompt": "To be", "max_tokens": 4, "stream": False, **fields}
    return httpx.post(f"{url}/generate", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=TIMEOUT_S)


def usage(client: httpx.Client, key: str) -> dict[str, Any]:
    return {view["key"]: view for view in client.get("/usage").json()["data"]}[key]


def settled_usage(client: httpx.Client, key: str) -> dict[str, Any]:
    """Returns the usage with every request of the key: one is counted after its client has received the response."""
    return wait_for(lambda: found if not (found := usage(client, key))["running"] else None)


def test_openais_client_gets_its_exception_and_headers(ring: RingClient):
    with openai.OpenAI(base_url=f"{ring.url}/v1", api_key="rich", max_retries=0) as client:
        raw = client.completions.with_raw_response.create(model="m", prompt="To be", max_tokens=4)
        assert raw.headers["x-ratelimit-limit-requests"] == "100"
        assert raw.headers["x-ratelimit-remaining-requests"] == "99"
        assert raw.parse().choices[0].text
    with openai.OpenAI(base_url=f"{ring.url}/v1", api_key="poor", max_retries=0) as client:
        assert client.completions.create(model="m", prompt="To be", max_tokens=4).choices
        with pytest.raises(openai.RateLimitError) as error:
            client.completions.create(model="m", prompt="To be", max_tokens=4, stream=True)
        assert error.value.code == "rate_limit_exceeded"
        assert 1 <= int(error.value.response.headers["retry-after"]) <= 60
    client = openai.OpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_anthropics_client_gets_its_exception(ring: RingClient):
    import anthropic  # every worker imports this file, and importing the client takes seconds

    ask: dict[str, Any] = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "To be"}]}
    with anthropic.Anthropic(base_url=ring.url, api_key="free", max_retries=0) as client:
        assert client.messages.create(**ask).content
    generate(ring.url, "poorer")
    client = anthropic.Anthropic(base_url=ring.url, api_key="poorer", max_retries=0)
    with client, pytest.raises(anthropic.RateLimitError, match="rate_limit_error"):
        client.messages.create(**ask)


def test_a_client_that_retries_gets_through(ring: RingClient):
    """The client of OpenAI obeys `Retry-After`: thirty a minute are one every two seconds."""
    with ThreadPoolExecutor(30) as pool:
        replies = list(pool.map(lambda _: generate(ring.url, "steady").status_code, range(30)))
    assert replies.count(200) == 30
    with openai.OpenAI(base_url=f"{ring.url}/v1", api_key="steady", max_retries=5) as client:
        assert client.completions.create(model="m", prompt="To be", max_tokens=4).choices


def test_two_frontends_together_let_exactly_the_limit_in(ring: RingClient, client: httpx.Client):
    before, begin_s = settled_usage(client, "rich"), time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: generate(ring.url, "rich", max_tokens=1).status_code, range(140)))
    refilled, after = (time.monotonic() - begin_s) * 100 / 60, settled_usage(client, "rich")
    num_let_in = replies.count(200)
    assert num_let_in == after["requests"] - before["requests"]
    assert replies.count(429) == 140 - num_let_in == after["limited"] - before["limited"]
    # the limit, what it has refilled meanwhile, and what other tests of this module have used before
    assert 90 <= num_let_in <= 101 + refilled
    wait_for(lambda: _workers_of(client) == {"frontend", "frontend-2"})  # one that is late is left out


def _workers_of(client: httpx.Client) -> set[str]:
    lines = client.get("/metrics").text.splitlines()
    return {line.split('worker="')[1].split('"')[0] for line in lines if 'worker="' in line and "{" in line}


def test_tokens_a_minute_count_prompt_and_output(ring: RingClient, client: httpx.Client):
    assert generate(ring.url, "tokens", max_tokens=60, ignore_eos=True).status_code == 200
    assert settled_usage(client, "tokens")["output_tokens"] == 60
    refused = generate(ring.url, "tokens")
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "tokens"
    assert int(refused.headers["retry-after"]) >= 20
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


def is_cut_off(ring: RingClient, client: httpx.Client) -> bool:
    """Kills the frontends during a stream; returns False if it had ended before, as for a slow client."""
    body = {"prompt": "To be", "max_tokens": 900, "ignore_eos": True}
    with client.stream("POST", "/generate", json=body, headers={"Authorization": "Bearer free"}) as stream:
        lines = stream.iter_lines()
        next(lines)
        num_running = usage(client, "free")["running"]
        for pid in frontends(ring):
            psutil.Process(pid).send_signal(signal.SIGKILL)
        try:
            list(lines)
        except httpx.TransportError:
            assert num_running == 1
            return True
    return False


def test_usage_survives_frontends_that_are_killed(ring: RingClient, client: httpx.Client, key_file: Path):
    for _ in range(5):
        assert generate(ring.url, "free").status_code == 200
    for _ in range(MAX_TRIES):
        before = settled_usage(client, "free")
        if is_cut_off(ring, client):
            break
        ring.wait_until_empty()
    else:
        raise AssertionError("no stream was open when the frontends died")
    ring.wait_until_empty()
    after = usage(client, "free")
    assert {name: after[name] for name in ("requests", "prompt_tokens", "output_tokens", "running")} == {
        **{name: before[name] for name in ("requests", "prompt_tokens", "output_tokens")},
        "running": 0,
    }
    listed = subprocess.run(
        [sys.executable, "launch.py", "ps", "--keys", "--run-dir", str(ring.run_dir.path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    row = next(line.split() for line in listed.splitlines() if line.startswith("free"))
    assert row[3:7] == [str(after[name]) for name in ("requests", "prompt_tokens", "cached_tokens", "output_tokens")]


def test_the_next_server_continues_with_the_usage(
    ring: RingClient, client: httpx.Client, start_ring: Start, key_file: Path
):
    before = settled_usage(client, "free")["output_tokens"]
    second = start_ring(BARD_DIR, "--served-model-name", "m", "--api-keys", str(key_file))
    assert generate(second.url, "free").status_code == 200
    assert before < settled_usage(client, "free")["output_tokens"] <= before + 4


def frontends(ring: RingClient) -> list[int]:
    processes = httpx.get(f"{ring.url}/health", timeout=TIMEOUT_S).json()["processes"]
    return [status["pid"] for name, status in processes.items() if name.startswith("frontend")]
