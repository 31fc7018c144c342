"""Chaos with several models: they are loaded, unloaded, swapped and killed under streams, and every stream stays exact.

    python -m tests.ring.models_chaos --seconds 60 --seed 1

Two of the three models fit into the memory, so requests alone swap them all the time. Meanwhile processes of all kinds
are killed (SIGKILL). A stream survives the death of a tokenizer, scheduler or detokenizer, and of the process that
starts the models. The death of its model's launcher or frontend, or of the router, may cut it off: then it must be
seen to be cut off, and its tokens must be the first ones of the whole answer. Nothing else may end a request early.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.ring.chaos import make_requests
from tests.ring.client import Generated, RingClient, events_of
from tests.ring.model_ring import NAMES, ModelRing, model_ring, write_models

NUM_CLIENTS = 12
NUM_REQUESTS = 8
"""Different requests for each model."""
CONTEXT = 256
LEAVE_CHANCE = 0.1
MIN_TURNS = 4
PAUSE_S = (0.3, 2.0)
REQUEST_TIMEOUT_S = 120.0
LOAD_FAILED, DEATH_SEEN_S = "could not be loaded", 2.0
"""A request may wait for a load whose death has not been seen yet."""
RING = ("tokenizer", "scheduler", "detokenizer")


class ModelCounts(msgspec.Struct):
    """`wrong` must stay empty. `cut`: streams that a death was allowed to cut off."""

    turns: Counter[str] = msgspec.field(default_factory=Counter)
    streams: int = 0
    left: int = 0
    cut: int = 0
    continued: int = 0
    tokens: int = 0
    wrong: list[str] = msgspec.field(default_factory=list[str])


class Attempt(msgspec.Struct):
    """A request under way, with what has arrived of its answer."""

    name: str
    began_s: float
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list[int])


class ModelsChaos:
    """The clients and the killer of one server of several models."""

    def __init__(self, ring: ModelRing, seed: int, pause_s: tuple[float, float] = PAUSE_S):
        self.counts = ModelCounts()
        self._ring = ring
        self._pause_s = pause_s
        self._rng = random.Random(seed)
        self._requests = make_requests(self._rng, has_images=False)[:NUM_REQUESTS]
        self._expected: dict[tuple[str, int], Generated] = {}
        self._cuts: list[tuple[float, str]] = []
        """The deaths that may cut streams off: when, and of which model; "" for the router."""
        self._num_tokens_since_kill: Counter[str] = Counter()
        self._is_over = False

    async def run(self, seconds: float) -> None:
        """Runs for `seconds` and at least `MIN_TURNS` disturbances, then waits until every request has ended."""
        async with self._ring.connect() as client:
            for name in NAMES:
                found = await asyncio.gather(
                    *(self._whole(client, Attempt(name, 0.0), request) for request in self._requests)
                )
                self._expected |= {(name, index): answer for index, answer in enumerate(found)}
            clients = [asyncio.create_task(self._be_client(client)) for _ in range(NUM_CLIENTS)]
            end_s = time.monotonic() + seconds
            while self.counts.turns.total() < MIN_TURNS or time.monotonic() < end_s:
                await asyncio.sleep(self._rng.uniform(*self._pause_s))
                await self._disturb()
            self._is_over = True
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await asyncio.gather(*clients)

    async def _be_client(self, client: httpx.AsyncClient) -> None:
        while not self._is_over:
            name, index = self._rng.choice(NAMES), self._rng.randrange(NUM_REQUESTS)
            attempt = Attempt(name, time.monotonic())
            limit_s = self._rng.uniform(0.0, 1.0) if self._rng.random() < LEAVE_CHANCE else REQUEST_TIMEOUT_S
            try:
                async with asyncio.timeout(limit_s):
                    found = await self._whole(client, attempt, self._requests[index])
            except TimeoutError:
                self.counts.left += 1
                if limit_s == REQUEST_TIMEOUT_S:
                    self.counts.wrong.append(f"{name} {index}: no end after {limit_s:g} s: {attempt}")
            except (AssertionError, httpx.HTTPError) as error:
                self._record_cut(attempt, index, error)
            else:
                self._check(found, name, index)

    async def _whole(self, client: httpx.AsyncClient, attempt: Attempt, request: dict[str, Any]) -> Generated:
        """Returns the final output of a client; `attempt` has what has come before an error."""
        last: dict[str, Any] = {}
        async for event in events_of(client, {**request, "stream": True, "model": attempt.name}):
            assert "error" not in event, event
            attempt.text += event["text"]
            attempt.token_ids += event["token_ids"]
            self.counts.tokens += len(event["token_ids"])
            self._num_tokens_since_kill[attempt.name] += len(event["token_ids"])
            last = event
        attempts = last["timing"]["attempts"]
        return Generated(attempt.text, attempt.token_ids, last["finish_reason"], last["usage"], attempts)

    def _check(self, found: Generated, name: str, index: int) -> None:
        expected = self._expected[name, index]
        self.counts.streams += 1
        self.counts.continued += found.attempts > 1
        for field in ("text", "token_ids", "finish_reason"):
            if getattr(found, field) != getattr(expected, field):
                self.counts.wrong.append(f"{name} {index}: {found} instead of {expected}")
                return

    def _record_cut(self, attempt: Attempt, index: int, error: Exception) -> None:
        """Counts a request without a proper end: wrong unless a death explains it."""
        expected = self._expected[attempt.name, index]
        is_first_part = expected.token_ids[: len(attempt.token_ids)] == attempt.token_ids
        since_s = attempt.began_s - DEATH_SEEN_S * (LOAD_FAILED in str(error))
        if is_first_part and any(at_s >= since_s and name in ("", attempt.name) for at_s, name in self._cuts):
            self.counts.cut += 1
        else:
            self.counts.wrong.append(f"{attempt.name} {index}: {type(error).__name__} {error}: {attempt}")

    async def _disturb(self) -> None:
        """Kills, loads or unloads something; nothing if what was drawn is not there."""
        name = self._rng.choice(NAMES)
        turns: list[Callable[[str], Awaitable[str]]] = [
            *([self._kill_in_ring] * 4),
            *([self._load, self._unload] * 2),
            self._kill_launcher,
            self._kill_frontend,
            self._kill_host,
            self._kill_router,
        ]
        try:
            done = await self._rng.choice(turns)(name)
        except (OSError, httpx.HTTPError, KeyError, ValueError):  # it has just ended
            return
        if done:
            self.counts.turns[done] += 1

    async def _kill_in_ring(self, name: str) -> str:
        """Kills a process whose requests continue. One whose request dies three times without a token is to blame."""
        model = await asyncio.to_thread(self._find, name)
        process = self._rng.choice(RING)
        if model is None or not self._num_tokens_since_kill[name]:
            return ""
        self._num_tokens_since_kill[name] = 0
        kill((await asyncio.to_thread(model.status, process))["pid"])
        return process

    async def _kill_frontend(self, name: str) -> str:
        model = await asyncio.to_thread(self._find, name)
        return self._cut("model's frontend", model.status("frontend")["pid"], name) if model else ""

    async def _kill_launcher(self, name: str) -> str:
        pid = (await asyncio.to_thread(self._ring.health))["models"][name]["pid"]
        return self._cut("model's launcher", pid, name)

    async def _kill_router(self, name: str) -> str:
        return self._cut("router", (await asyncio.to_thread(self._ring.status, "frontend"))["pid"], "")

    async def _kill_host(self, name: str) -> str:
        kill((await asyncio.to_thread(self._ring.status, "models"))["pid"])
        return "host"

    async def _load(self, name: str) -> str:
        await asyncio.to_thread(self._ring.post, "/models/load", model=name)
        return "load"

    async def _unload(self, name: str) -> str:
        await asyncio.to_thread(self._ring.post, "/models/unload", model=name)
        return "unload"

    def _find(self, name: str) -> RingClient | None:
        """Returns the model's server if all its processes serve."""
        if name not in self._ring.loaded():
            return None
        model = self._ring.of(name)
        return model if model.health()["status"] == "ready" else None

    def _cut(self, what: str, pid: int, name: str) -> str:
        kill(pid)
        self._cuts.append((time.monotonic(), name))
        return what


def kill(pid: int) -> None:
    """Raises `ValueError` for 0, which stands for a process that does not run: it would be all of ours."""
    if not pid:
        raise ValueError(pid)
    os.kill(pid, signal.SIGKILL)


def report(counts: ModelCounts) -> str:
    turns = ", ".join(f"{name} {number}" for name, number in sorted(counts.turns.items()))
    return "\n".join(
        [
            f"turns: {counts.turns.total()} ({turns})",
            f"streams: {counts.streams} to the end, {counts.continued} of them continued; {counts.left} left by their "
            f"client, {counts.cut} cut off by a death; {counts.tokens} tokens; wrong: {len(counts.wrong)}",
            *counts.wrong[:10],
        ]
    )


def run_models_chaos(ring: ModelRing, seconds: float, seed: int, pause_s: tuple[float, float] = PAUSE_S) -> ModelCounts:
    """Runs chaos on a server of the models `NAMES`. Afterwards it must be well, and serve each of them."""
    chaos = ModelsChaos(ring, seed, pause_s)
    asyncio.run(chaos.run(seconds))
    for name in NAMES:
        ring.generate([5, 6, 7], model=name, max_tokens=4)
    return chaos.counts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.ring.models_chaos", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long processes are killed")
    parser.add_argument("--seed", type=int, default=1, help="of everything random but the machine")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as directory:
        write_models(Path(directory), context=CONTEXT)
        with model_ring("--models", directory) as (server, ring):
            try:
                counts = run_models_chaos(ring, arguments.seconds, arguments.seed)
            except BaseException:
                print("\n".join(line for _, line in server.log), file=sys.stderr)
                raise
            log = "\n".join(f"{at_s:8.3f} {line}" for at_s, line in server.log)
    print(report(counts))
    if counts.wrong:
        print(log)
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
