"""Chaos: processes of a real ring die or hang at random under many streams, and every stream must stay exact.

    python -m tests.ring.chaos --seconds 600 --seed 1
    python -m tests.ring.chaos --seconds 3600 --quiet --think-s 20
    python -m tests.ring.chaos --data-parallel 2 --kill-engines-every 3 --model assets/shakespeare-gpt2 --json FILE
    python -m tests.ring.chaos --model assets/smollm2-135m-instruct -- --dtype float32 --speculative ngram
    python -m tests.ring.chaos --images

Each request of a fixed set is first run undisturbed. Then 32 clients send random requests of the set, and some
disconnect in the middle. Every few seconds the tokenizer, the encoder, the scheduler or the detokenizer is killed
(SIGKILL) or stopped (SIGSTOP, which counts as a hang), or frames to or from it are dropped, duplicated or corrupted;
`--quiet` disables this. Every client that stays must get the text, the ids and the end of the undisturbed run. No
request may be rejected: requests that arrive while a process is away wait for it. The launcher must report no stall.
With `--kill-engines-every` only engines are killed (SIGKILL), one at a time: the next one when all serve again. Flags
after `--` are the server's. With `--images` a third of the requests have images, of which few are cached.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import msgspec

from benchmarks.result_file import write_result
from benchmarks.server_process import ServerProcess, started_server
from extras.faults.messages import ClearFaults, EdgeFault
from messages.control.admin import Acknowledged
from messages.control.processes import kind_of
from tests.frontend.images.pictures import data_url, picture
from tests.ring.client import Generated, RingClient, body, events_of, generated
from tests.tiny_llama import write_tiny_llama
from tests.vision_models import make_vision_model

NUM_CLIENTS = 32
NUM_REQUESTS = 64
NUM_UNDISTURBED = 8
"""Requests that run at once before the disturbances."""

CONTEXT = 256
READY_TIMEOUT_S = 180.0
RETRY_S = 0.1
LONG_PAUSE_S = 0.5
LEAVE_CHANCE = 0.15
STOP_CHANCE = 0.25
MIN_TURNS = 4
"""Minimum number of disturbances, however slow the machine. Every second one harms frames."""
MAX_FRAMES = 3
PAUSE_S = (2.0, 5.0)
FRAME_FAULTS = ("drop", "drop", "duplicate", "corrupt")
EDGES = (
    ("frontend", "tokenizer"),
    ("tokenizer", "scheduler"),
    ("scheduler", "detokenizer"),
    ("detokenizer", "scheduler"),
    ("detokenizer", "frontend"),
)
ENCODER_EDGES = (("scheduler", "encoder"), ("encoder", "scheduler"))
PROCESSES = ("tokenizer", "scheduler", "detokenizer")
"""The kinds to kill, and the encoder; several engines are `scheduler`, `scheduler-2` …"""
FLAGS = (
    *("--enable-fault-injection", "--max-restarts-per-min", "1000"),
    *("--hang-timeout-s", "3", "--stall-s", "6", "--sse-keepalive-s", "5"),
)

IMAGE_FLAGS = ("--no-enable-prefix-caching", "--image-cache-mb", "0.05", "--dtype", "float32", "--max-model-len", "256")
"""With encodings of few images, and no K and V that could replace them."""

QUIET_FLAGS = ("--hang-timeout-s", "60")
"""If no process is stopped, none may count as hung, however busy the machine."""

QUESTIONS = Path(__file__).resolve().parents[3] / "shared" / "prompts" / "gsm8k" / "test.jsonl"


class Counts(msgspec.Struct):
    """The results. `lost` and `doubled` must stay 0: missing and surplus tokens in the outputs of clients."""

    kills: Counter[str] = msgspec.field(default_factory=Counter)
    frames: Counter[str] = msgspec.field(default_factory=Counter)
    """Frames that were dropped, duplicated or corrupted."""
    streams: int = 0
    left: int = 0
    refused: int = 0
    """Answered 503: must stay 0 unless a process was away for longer than the hold, `--restart-hold-s`."""
    continuations: int = 0
    stalls: list[str] = msgspec.field(default_factory=list[str])
    """Stalls in the metrics: must stay empty."""
    tokens: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = msgspec.field(default_factory=list)
    pauses_s: dict[str, list[float]] = msgspec.field(default_factory=lambda: defaultdict(list))
    kill_intervals_s: list[float] = msgspec.field(default_factory=list[float])
    """With --kill-engines-every."""
    stream_pauses: list[tuple[float, float]] = msgspec.field(default_factory=list[tuple[float, float]])
    """The longest times between two tokens of each continued stream, as many as it has had continuations, and when
    each was over (`time.monotonic`)."""


class Pause:
    """The time from a kill to the end of the longest silence after it, over all streams."""

    def __init__(self, process: str, kind: str, num_restarts: int):
        self.process = process
        self.kind = kind
        self.num_restarts = num_restarts
        self.began_s = time.monotonic()
        self._last_s = self.began_s
        self._longest_s = 0.0
        self._end_s = self.began_s

    def record_token(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s > self._longest_s:
            self._longest_s, self._end_s = now_s - self._last_s, now_s
        self._last_s = now_s

    @property
    def seconds(self) -> float:
        return self._end_s - self.began_s


class Chaos:
    """The clients and the killer of one ring."""

    def __init__(
        self,
        ring: RingClient,
        seed: int,
        pause_s: tuple[float, float] | None,
        kill_every_s: float = 0.0,
        think_s: float = 0.0,
    ):
        self.ring = ring
        self._think_s = think_s
        self._kill_every_s = kill_every_s
        schedulers = [name for name in ring.health()["processes"] if kind_of(name) == "scheduler"]
        self._schedulers = schedulers
        has_images = "encoder" in ring.health()["processes"]
        self.processes = (*PROCESSES, *schedulers[1:], *["encoder"] * has_images)
        self._edges = (
            *EDGES,
            *ENCODER_EDGES * has_images,
            *(edge for name in schedulers[1:] for edge in (("tokenizer", name), (name, "detokenizer"))),
        )
        self._pause_s = pause_s
        self.counts = Counts()
        self._rng = random.Random(seed)
        self._requests = make_requests(self._rng, has_images=has_images)
        self._expected: list[Generated] = []
        self._pause: Pause | None = None
        self._num_tokens_since_kill = 0
        self._is_over = False

    async def run(self, seconds: float) -> None:
        """Runs for `seconds` and at least `MIN_TURNS` disturbances, then waits until every stream has ended."""
        async with self.ring.connect() as client:
            for begin in range(0, NUM_REQUESTS, NUM_UNDISTURBED):
                some = self._requests[begin : begin + NUM_UNDISTURBED]
                self._expected += await asyncio.gather(*(self._whole(client, request) for request in some))
            self.counts.tokens = 0
            clients = [asyncio.create_task(self._be_client(client)) for _ in range(NUM_CLIENTS)]
            await self._kill_again_and_again(seconds)
            self._is_over = True
            await asyncio.gather(*clients)
            self._end_pause(await asyncio.to_thread(self.ring.health))

    async def _be_client(self, client: httpx.AsyncClient) -> None:
        while not self._is_over:
            index = self._rng.randrange(len(self._requests))
            request = self._requests[index]
            try:
                if self._rng.random() < LEAVE_CHANCE:
                    await self._leave(client, request)
                else:
                    self._check(index, await self._whole(client, request))
            except (AssertionError, httpx.HTTPError) as error:
                self.counts.refused += str(error).startswith("503")
                self.counts.wrong.append(f"request {index}: {type(error).__name__} {error}")
                await asyncio.sleep(RETRY_S)
            if self._think_s and not self._is_over:
                await asyncio.sleep(self._rng.expovariate(1 / self._think_s))

    async def _whole(self, client: httpx.AsyncClient, request: dict[str, Any]) -> Generated:
        """Returns the final output of a client."""
        if request["stream"] is False:
            return await self._in_one_piece(client, request)
        text: list[str] = []
        token_ids: list[int] = []
        last: dict[str, Any] = {}
        arrivals_s: list[float] = []
        async for event in events_of(client, request):
            assert "error" not in event, event
            text.append(event["text"])
            token_ids += event["token_ids"]
            last = event
            arrivals_s += [time.monotonic()] * bool(event["token_ids"])
            self._record_tokens(len(event["token_ids"]))
        num_continuations = last["timing"]["attempts"] - 1
        pauses = sorted(((later - earlier, later) for earlier, later in pairwise(arrivals_s)), reverse=True)
        self.counts.stream_pauses += pauses[:num_continuations]
        return Generated("".join(text), token_ids, last["finish_reason"], last["usage"], last["timing"]["attempts"])

    async def _in_one_piece(self, client: httpx.AsyncClient, request: dict[str, Any]) -> Generated:
        reply = await client.post("/generate", json=request)
        assert reply.status_code == 200, f"{reply.status_code}: {reply.text}"
        content = reply.json()
        self.counts.tokens += len(content["token_ids"])
        return generated(content)

    async def _leave(self, client: httpx.AsyncClient, request: dict[str, Any]) -> None:
        """Closes the connection after some events, or at a deadline if the ring pauses."""
        stream = events_of(client, {**request, "stream": True})
        num_events = self._rng.randrange(0, 30)
        try:
            async with asyncio.timeout(self._rng.uniform(0.0, 6.0)):
                async for event in stream:
                    assert "error" not in event, event
                    self._record_tokens(len(event["token_ids"]))
                    num_events -= 1
                    if num_events <= 0:
                        break
        except TimeoutError:
            pass
        finally:
            await stream.aclose()
        self.counts.left += 1

    def _record_tokens(self, num_tokens: int) -> None:
        self.counts.tokens += num_tokens
        self._num_tokens_since_kill += num_tokens
        if self._pause is not None and num_tokens:
            self._pause.record_token()

    def _check(self, index: int, got: Generated) -> None:
        counts, expected = self.counts, self._expected[index]
        counts.streams += 1
        counts.continuations += got.attempts - 1
        counts.lost += max(0, len(expected.token_ids) - len(got.token_ids))
        counts.doubled += max(0, len(got.token_ids) - len(expected.token_ids))
        same = [getattr(got, name) == getattr(expected, name) for name in ("text", "token_ids", "finish_reason")]
        if not all(same) or got.usage["completion_tokens"] != expected.usage["completion_tokens"]:
            counts.wrong.append(f"request {index} ({got.attempts} attempts): {got} instead of {expected}")

    async def _kill_again_and_again(self, seconds: float) -> None:
        """Kills and harms frames in turn."""
        if self._kill_every_s:
            await self._kill_engines(seconds)
            return
        if self._pause_s is None:
            await asyncio.sleep(seconds)
            return
        end_s, num_turns = time.monotonic() + seconds, 0
        while num_turns < MIN_TURNS or time.monotonic() < end_s:
            await asyncio.sleep(self._rng.uniform(*self._pause_s))
            has_happened = await (self._harm_frames() if num_turns % 2 else self._kill_one())
            num_turns += has_happened

    async def _kill_engines(self, seconds: float) -> None:
        """Kills one engine at a time, when all serve and have produced tokens since the last kill."""
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            await asyncio.sleep(self._kill_every_s)
            while not self._num_tokens_since_kill or not (pids := await asyncio.to_thread(self._find_engines)):
                await asyncio.sleep(RETRY_S)
            name = self._rng.choice(self._schedulers)
            os.kill(pids[name], signal.SIGKILL)
            self._num_tokens_since_kill = 0
            self.counts.kills[f"{name} SIGKILL"] += 1
            self.counts.kill_intervals_s.append(time.monotonic() - began_s)

    def _find_engines(self) -> dict[str, int]:
        """Returns the pids of the engines; empty if not all serve, or if a request is suspected of the last death."""
        processes = self.ring.health()["processes"]
        serving = [processes[name]["state"] in ("ready", "busy") for name in self._schedulers]
        may_kill = all(serving) and not has_suspects(processes)
        return {name: processes[name]["pid"] for name in self._schedulers} if may_kill else {}

    async def _harm_frames(self) -> bool:
        """Harms the next frames of one edge. Returns False if its sender is not serving."""
        sender, receiver = self._rng.choice(self._edges)
        kind = self._rng.choice(FRAME_FAULTS)
        num_frames = self._rng.randint(1, MAX_FRAMES)
        command = EdgeFault(receiver, kind, num_frames)
        result = await asyncio.to_thread(self.ring.instruct, sender, command, timeout_s=2.0)
        if not isinstance(result, Acknowledged):
            return False
        self.counts.frames[f"{sender}>{receiver} {kind}"] += num_frames
        return True

    async def _kill_one(self) -> bool:
        """Kills or stops a process in whatever state it is, also while it starts (one that starts cannot hang).

        False if the one that was drawn must be left alone just now.
        """
        name = self._rng.choice(self.processes)
        health = await asyncio.to_thread(self.ring.health)
        status = health["processes"][name]
        is_calm = health["status"] == "ready"
        too_soon = has_suspects(health["processes"]) or (is_calm and not self._num_tokens_since_kill)
        if not status["pid"] or (kind_of(name) == "scheduler" and too_soon):
            return False  # a request in three deaths of the scheduler without a token counts as poison
        can_hang = is_calm and status["state"] in ("ready", "busy")
        how = signal.SIGSTOP if can_hang and self._rng.random() < STOP_CHANCE else signal.SIGKILL
        try:
            os.kill(status["pid"], how)
        except ProcessLookupError:  # it hung, and the launcher killed it first
            return False
        self._end_pause(health)
        kind = f"{name} {how.name}"
        # Then nothing pauses as a whole.
        continues = name == "encoder" or (kind_of(name) == "scheduler" and len(self._schedulers) > 1)
        self._pause = Pause(name, kind, status["num_restarts"]) if is_calm and not continues else None
        self._num_tokens_since_kill = 0
        self.counts.kills[kind] += 1
        return True

    def _end_pause(self, health: dict[str, Any]) -> None:
        """Notes the latest pause, unless the next kill comes before it is over."""
        pause, self._pause = self._pause, None
        if pause is None or health["status"] != "ready" or not self._num_tokens_since_kill:
            return
        if health["processes"][pause.process]["num_restarts"] > pause.num_restarts:
            self.counts.pauses_s[pause.kind].append(pause.seconds)


def has_suspects(processes: dict[str, Any]) -> bool:
    """Returns whether a request was in deaths of the scheduler since its last token. On a slow machine, many are."""
    return bool(processes["frontend"]["gauges"].get("suspects"))


def make_requests(rng: random.Random, *, has_images: bool) -> list[dict[str, Any]]:
    """Greedy and sampled requests, as text and ids, streamed and not, with all kinds of ends."""
    prompts = real_prompts(rng) or [""] * NUM_REQUESTS
    images = [data_url(picture(8 + 9 * number, 60 - 5 * number, f"#{number:x}a{number:x}")) for number in range(10)]
    requests = [
        body(
            prompts[index] if prompts[index] and index % 2 else [rng.randrange(3, 250) for _ in range(40)],
            max_tokens=rng.randrange(40, CONTEXT - 80),
            temperature=0.0 if index % 3 == 0 else rng.uniform(0.3, 1.2),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            seed=index,
            ignore_eos=index % 4 != 0,
            stop=rng.choice([[], [], ["e", "\u00fc"], ["ing", "ab"]]),
            stop_token_ids=rng.choice([[], [], [17, 18]]),
            include_stop_str_in_output=rng.random() < 0.5,
            stream=index % 8 != 7,
        )
        for index in range(NUM_REQUESTS)
    ]
    for index, request in enumerate(requests if has_images else ()):
        if index % 3 == 0:
            request |= {"prompt": f"Number {index % 7}:", "images": rng.sample(images, rng.randint(1, 2))}
    return requests


def real_prompts(rng: random.Random) -> list[str]:
    """Returns beginnings of real questions, if available."""
    if not QUESTIONS.is_file():
        return []
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"][: rng.randrange(10, 70)] for line in rng.sample(lines, NUM_REQUESTS)]


def report(counts: Counts) -> str:
    lines = [
        f"kills: {sum(counts.kills.values())} ({', '.join(f'{k} {n}' for k, n in sorted(counts.kills.items()))})",
        f"frames: {sum(counts.frames.values())} ({', '.join(f'{k} {n}' for k, n in sorted(counts.frames.items()))})",
        f"streams: {counts.streams} to the end, {counts.left} left by their client, {counts.refused} refusals (503)",
        f"continuations: {counts.continuations}; stalls: {len(counts.stalls)} {counts.stalls or ''}",
        f"tokens: {counts.tokens}, lost {counts.lost}, doubled {counts.doubled}; wrong streams: {len(counts.wrong)}",
    ]
    for kind, pauses_s in sorted(counts.pauses_s.items()):
        lines.append(
            f"pause after {kind}: median {statistics.median(pauses_s):.2f} s, longest {max(pauses_s):.2f} s "
            f"({len(pauses_s)} measured)"
        )
    for text, times_s in (("between kills", counts.kill_intervals_s), ("pause of a stream", pauses_of(counts))):
        if times_s:
            lines.append(f"{text}: {', '.join(f'{name} {value:.3f}' for name, value in summary(times_s).items())}")
    return "\n".join(lines + counts.wrong[:10])


def pauses_of(counts: Counts) -> list[float]:
    return [pause_s for pause_s, _ in counts.stream_pauses]


def log_of_longest_pause(counts: Counts, server: ServerProcess) -> str:
    """Returns the server's output meanwhile, without its access log; empty if no stream paused for long."""
    pause_s, end_s = max(counts.stream_pauses, default=(0.0, 0.0))
    if pause_s < LONG_PAUSE_S:
        return ""
    times_s = (end_s - pause_s - 3.0, end_s + 0.2)
    lines = [
        f"{at_s + server.begin_s - end_s + pause_s:7.3f}  {line}"
        for at_s, line in server.log
        if times_s[0] < at_s + server.begin_s < times_s[1] and "POST /" not in line
    ]
    return "\n".join([f"around the longest pause, in seconds from its begin (it took {pause_s:.3f}):", *lines])


def summary(times_s: list[float]) -> dict[str, float]:
    """Returns median, p99 and maximum; empty without values."""
    ordered = sorted(times_s)
    places = {"median_s": len(ordered) // 2, "p99_s": len(ordered) * 99 // 100, "longest_s": -1}
    return {name: round(ordered[place], 4) for name, place in places.items()} if ordered else {}


def result_of(counts: Counts, **settings: object) -> dict[str, object]:
    """Returns the content of the result file."""
    names = ("kills", "streams", "left", "refused", "continuations", "tokens", "lost", "doubled")
    return {
        **settings,
        **{name: getattr(counts, name) for name in names},
        "wrong": len(counts.wrong),
        "stalls": len(counts.stalls),
        "between_kills": summary(counts.kill_intervals_s),
        "pause_of_a_continued_stream": summary(pauses_of(counts)),
    }


def run_chaos(
    ring: RingClient,
    seconds: float,
    seed: int,
    pause_s: tuple[float, float] | None = PAUSE_S,
    kill_every_s: float = 0.0,
    think_s: float = 0.0,
) -> Counts:
    """Runs chaos on a ring with `FLAGS`, something every `pause_s` (`None`: nothing ever).

    Afterwards nothing may be left in any process.
    """
    chaos = Chaos(ring, seed, pause_s, kill_every_s, think_s)
    asyncio.run(chaos.run(seconds))
    for process in chaos.processes:
        ring.wait_for_restart(process, 0)
        ring.instruct(process, ClearFaults())
    ring.wait_until_empty()
    chaos.counts.stalls = ring.stalls()
    return chaos.counts


@contextmanager
def chaos_ring(*flags: str, model: str = "", has_images: bool = False) -> Iterator[tuple[ServerProcess, RingClient]]:
    """A server of `model`, or of a tiny one."""
    with tempfile.TemporaryDirectory(prefix="sluice-chaos-") as directory:
        if has_images:
            make_vision_model("idefics3", Path(directory))
            flags = (*IMAGE_FLAGS, *flags)
        else:
            write_tiny_llama(Path(directory), CONTEXT)
        arguments = ["--model", model or directory, "--cpu-threads", "1", *FLAGS, *flags]
        with started_server(arguments, READY_TIMEOUT_S) as (server, target):
            yield server, RingClient(f"http://{target.host}:{target.port}", server.run_dir)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ring.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long processes are killed")
    parser.add_argument("--seed", type=int, default=1, help="of everything random but the machine")
    parser.add_argument("--data-parallel", type=int, default=1, metavar="N", help="engines, as for launch.py")
    parser.add_argument("--kill-engines-every", type=float, default=0.0, metavar="S", help="kill nothing but engines")
    parser.add_argument("--model", default="", metavar="DIR", help="a model with a context of at least 256 tokens")
    parser.add_argument("--images", action="store_true", help="a tiny model of images instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    parser.add_argument(
        "--think-s", type=float, default=0.0, metavar="S", help="mean pause between a client's requests"
    )
    parser.add_argument("--quiet", action="store_true", help="load alone: nothing is killed or harmed")
    parser.add_argument("flags", nargs="*", help="after --: flags of the server")
    arguments = parser.parse_args()
    flags = (*(QUIET_FLAGS if arguments.quiet else ()), *arguments.flags)
    engines = ("--data-parallel", str(arguments.data_parallel))
    with chaos_ring(*engines, *flags, model=arguments.model, has_images=arguments.images) as (server, ring):
        try:
            pause_s, kill_every_s = None if arguments.quiet else PAUSE_S, arguments.kill_engines_every
            counts = run_chaos(ring, arguments.seconds, arguments.seed, pause_s, kill_every_s, arguments.think_s)
        except BaseException:
            print(server.log_text(), file=sys.stderr)
            raise
        exit_code = server.stop()
    print(report(counts))
    print(log_of_longest_pause(counts, server))
    if arguments.json:
        settings = {
            "engines": arguments.data_parallel,
            "flags": arguments.flags,
            "seconds": arguments.seconds,
            "clients": NUM_CLIENTS,
            "think_s": arguments.think_s,
        }
        write_result(arguments.json, "chaos", result_of(counts, **settings))
    has_restarted = arguments.quiet and counts.continuations
    return 1 if counts.wrong or counts.stalls or exit_code or has_restarted else 0


if __name__ == "__main__":
    raise SystemExit(main())
