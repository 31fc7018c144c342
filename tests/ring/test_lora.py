"""A server with LoRA adapters: they come and go while requests run, and no request of one is lost or mixed up."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.lora_adapters import write_adapter
from tests.ring.client import ADMIN_KEY, OPERATOR, TIMEOUT_S, Generated, RingClient, body, collect
from tests.ring.conftest import RESTART_FLAGS, Start

pytestmark = pytest.mark.ring

NAMES = "first", "second", "third"
NUM_TOKENS = 60
PROMPT = list(range(3, 60))


@pytest.fixture(scope="module")
def paths(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(folder / name, tiny_checkpoint, seed) for seed, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, paths: dict[str, str], start_ring: Start) -> RingClient:
    """It has fewer slots than adapters, and begins with one."""
    flags = ("--frontend-workers", "2", "--admin-key", ADMIN_KEY)
    lora = ("--lora", f"first={paths['first']}", "--max-loras", "2")
    ring = start_ring(tiny_checkpoint, *RESTART_FLAGS, *flags, *lora)
    for name in NAMES[1:]:
        assert load(ring, name, paths[name]).status_code == 200
    return ring


def load(ring: RingClient, name: str, path: str, **fields: Any) -> httpx.Response:
    content = {"lora_name": name, "lora_path": path, **fields}
    return httpx.post(f"{ring.url}/v1/load_lora_adapter", json=content, headers=OPERATOR, timeout=60)


def unload(ring: RingClient, name: str) -> httpx.Response:
    return httpx.post(f"{ring.url}/v1/unload_lora_adapter", json={"lora_name": name}, headers=OPERATOR, timeout=60)


@pytest.fixture(scope="module")
def requests() -> list[dict[str, Any]]:
    """The same prompt for each adapter and the model, greedy and sampled."""
    return [
        body(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, temperature=temperature, seed=5, model=name)
        for name in (*NAMES, None)
        for temperature in (0.0, 0.9)
    ]


@pytest.fixture(scope="module")
def undisturbed(ring: RingClient, requests: list[dict[str, Any]]) -> list[Generated]:
    return ring.generate_all(requests)


def test_each_adapter_has_its_own_tokens_and_its_own_cache(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated]
):
    assert len({tuple(one.token_ids) for one in undisturbed}) == len(requests)
    again = ring.generate_all(requests)
    assert [one.token_ids for one in again] == [one.token_ids for one in undisturbed]
    assert all(one.usage["cached_tokens"] == 48 for one in again)
    content = {"prompt": PROMPT, "model": "second"}
    reply = httpx.post(f"{ring.url}/cache/explain", json=content, headers=OPERATOR, timeout=TIMEOUT_S).json()
    assert (reply["hit_tokens"], reply["prompt_tokens"]) == (48, len(PROMPT))


@pytest.mark.parametrize("processes", [("scheduler",), ("tokenizer", "detokenizer")], ids=" and ".join)
def test_requests_continue_with_their_adapters_after_a_process_has_died(
    ring: RingClient, requests: list[dict[str, Any]], undisturbed: list[Generated], processes: Sequence[str]
):
    num_tokens, num_restarts = 0, {process: ring.status(process)["num_restarts"] + 1 for process in processes}

    def on_tokens(more: int) -> None:
        nonlocal num_tokens
        if num_tokens < 20 <= num_tokens + more:
            for process in processes:
                ring.kill(process)
        num_tokens += more

    got = ring.generate_all(requests, on_tokens)
    assert [one.token_ids for one in got] == [one.token_ids for one in undisturbed]
    for process in processes:
        ring.wait_for_restart(process, num_restarts[process])


def test_a_frontend_that_is_replaced_knows_the_names(ring: RingClient, undisturbed: list[Generated]):
    ring.wait_for_restart("frontend", ring.kill("frontend"))
    for _ in range(6):  # each on a connection of its own, to either frontend
        cards = httpx.get(f"{ring.url}/v1/models", timeout=TIMEOUT_S).json()["data"]
        assert {card["id"] for card in cards} >= set(NAMES)
    got = ring.generate(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, model="third")
    assert got.token_ids == undisturbed[4].token_ids


def test_several_choices_and_an_unload_at_the_same_time_all_end(ring: RingClient, paths: dict[str, str]):
    def complete(model: str) -> dict[str, Any]:
        content = body(PROMPT, model=model, n=4, max_tokens=NUM_TOKENS, temperature=0.9, seed=1, ignore_eos=True)
        reply = httpx.post(f"{ring.url}/v1/completions", json=content, timeout=60)
        return {"status": reply.status_code, "texts": [choice["text"] for choice in reply.json().get("choices", ())]}

    async def num_slots_in_use() -> float:
        return (await asyncio.to_thread(ring.gauges, "scheduler")).get("adapter_slots_in_use", 0.0)

    async def run() -> tuple[list[dict[str, Any]], httpx.Response]:
        while await num_slots_in_use():
            pass
        running = [asyncio.create_task(asyncio.to_thread(complete, "second")) for _ in range(3)]
        while not await num_slots_in_use() and not all(task.done() for task in running):
            pass
        unloaded = await asyncio.to_thread(unload, ring, "second")
        return [await task for task in running], unloaded

    undisturbed = complete("second")
    replies, unloaded = asyncio.run(run())
    assert unloaded.status_code == 200
    assert len(undisturbed["texts"]) == 4
    assert all(reply == undisturbed for reply in replies if reply["status"] == 200)
    assert undisturbed in replies
    assert complete("second")["status"] == 404
    assert load(ring, "second", paths["second"]).status_code == 200
    assert complete("second") == undisturbed


def test_other_contents_in_place_are_another_adapter_and_equal_ones_the_same(
    ring: RingClient, tiny_checkpoint: Path, paths: dict[str, str], undisturbed: list[Generated]
):
    """The prompt is cached under the old contents, under which a running request ends."""

    async def run() -> tuple[Generated, Generated]:
        async with ring.connect() as client:
            request = body(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, model="third")
            begun = asyncio.Event()
            old = asyncio.create_task(collect(client, request, lambda _: begun.set()))
            await begun.wait()
            write_adapter(Path(paths["third"]), tiny_checkpoint, 77)
            assert (await asyncio.to_thread(load, ring, "third", paths["third"])).status_code == 400
            reply = await asyncio.to_thread(lambda: load(ring, "third", paths["third"], load_inplace=True))
            assert reply.status_code == 200, reply.text
            new = await collect(client, request)
            return await old, new

    old, new = asyncio.run(run())
    assert old.token_ids == undisturbed[4].token_ids
    assert new.usage["cached_tokens"] == 0
    assert new.token_ids != old.token_ids
    write_adapter(Path(paths["third"]), tiny_checkpoint, NAMES.index("third"))
    assert load(ring, "third", paths["third"], load_inplace=True).status_code == 200
    again = ring.generate(PROMPT, max_tokens=NUM_TOKENS, ignore_eos=True, model="third")
    assert (again.token_ids, again.usage["cached_tokens"]) == (old.token_ids, 48)


def test_what_is_no_adapter_of_this_model_is_refused_with_the_reason(ring: RingClient, paths: dict[str, str], tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for file in Path(paths["first"]).iterdir():
        (other / file.name).write_bytes(file.read_bytes().replace(b'"r": 4', b'"r": 9'))
    reply = load(ring, "other", str(other))
    assert reply.status_code == 400
    assert "lora_A" in reply.json()["error"]["message"]
    assert load(ring, "other", str(tmp_path)).status_code == 400
    assert unload(ring, "other").status_code == 404
