"""Requests of all kinds, each computed in many ways: texts, ids and logprobs must be those of a run alone, to the bit.

    python -m tests.ring.same_texts --model assets/smollm2-135m-instruct
    python -m tests.ring.same_texts --model assets/smollm2-135m-instruct ngram killed -- --dtype bfloat16

The requests, 80 by default, first run one at a time on a server with the flags after `--`. Then they run again in each
way of `WAYS`, most of them at once. The report counts the requests whose reply is the same.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import httpx

from benchmarks.server_process import ROOT, OpenProcess, started_server
from messages.control.admin import Done, RestartProcess
from supervisor.client.admin_client import AdminClient
from tests.ring.chaos import QUESTIONS
from tests.ring.client import RingClient, events_of

READY_TIMEOUT_S = 180.0
CLIENT_TIMEOUT_S = 900.0
FLAGS = ("--kv-populate", "never", "--max-restarts-per-min", "1000", "--restart-hold-s", "100")
TOKENS = 48
DEATHS = 2
"""A request that is in three of them without a token counts as poison."""

MAX_TRIES = 8

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}

COUNTED = {
    "preemptions": "vllm:num_preemptions",
    "draft tokens accepted": "vllm:spec_decode_num_accepted_tokens",
    "continuations": "sluice_continuations",
}

Request = dict[str, Any]
Reply = dict[str, Any]
"""What must be the same; `attempts` apart."""

KINDS: tuple[Request, ...] = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.0, "top_p": 0.9, "top_k": 40},
    {"logprobs": 3},
    {"temperature": 1.0, "min_p": 0.05, "logprobs": 0},
    {"repetition_penalty": 1.2},
    {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": 2},
    {"temperature": 1.0, "typical_p": 0.9},
    {"temperature": 1.0, "xtc_probability": 0.5, "xtc_threshold": 0.1},
    {"temperature": 1.2, "top_n_sigma": 1.5},
    {"temperature": 0.7, "logit_bias": {"28": 3, "30": -5}, "bad_words": ["the"]},
    {"temperature": 0.8, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"temperature": 0.8, "min_tokens": 10, "stop": [" a", "ing"], "ignore_eos": False},
    {"temperature": 0.8, "guided_regex": "(yes|no), because [a-z ]{20,60}[.]", "ignore_eos": False},
    {"guided_json": SCHEMA, "ignore_eos": False},
    {"temperature": 1.0, "prompt_logprobs": 1, "logprobs": 1},
    {"n": 3, "temperature": 0.9, "logprobs": 1},
    {"n": 2, "best_of": 3, "use_beam_search": True},
)
"""Fields of `/generate`; those with `n`, of `/v1/completions`."""


class Run(NamedTuple):
    """A server and what it is sent."""

    ring: RingClient
    requests: Sequence[Request]


Way = Callable[[Run], Coroutine[Any, Any, list[Reply]]]


def prompts(num: int) -> list[str]:
    """Returns real questions, or else paragraphs of our pages."""
    if QUESTIONS.is_file():
        lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["question"] for line in lines[:num]]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    paragraphs = [part for page in pages for part in page.read_text(encoding="utf-8").split("\n\n") if len(part) > 100]
    return [part[:400] for part in paragraphs[:num]]


def make_requests(num: int, max_tokens: int = TOKENS) -> list[Request]:
    """Returns requests with the kinds in turn; a third of the prompts say everything twice, so that lookups match."""
    return [
        {
            "prompt": f"{prompt}\n{prompt}" if index % 3 == 1 else prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": index,
            "ignore_eos": True,
            **KINDS[index % len(KINDS)],
        }
        for index, prompt in enumerate(prompts(num))
    ]


async def ask(client: httpx.AsyncClient, request: Request) -> Reply:
    if "n" in request:
        reply = await client.post("/v1/completions", json={**request, "return_token_ids": True})
        assert reply.status_code == 200, reply.text
        content = reply.json()
        shown = ("text", "token_ids", "logprobs", "finish_reason", "stop_reason")
        choices = [{name: choice.get(name) for name in shown} for choice in content["choices"]]
        return {"choices": choices, "completion_tokens": content["usage"]["completion_tokens"]}
    if request["seed"] % 2 or "prompt_logprobs" in request:
        reply = await client.post("/generate", json={**request, "stream": False})
        assert reply.status_code == 200, reply.text
        events = [reply.json()]
    else:
        events = [event async for event in events_of(client, request)]
    assert not any("error" in event for event in events), events
    last = events[-1]
    joined = {
        name: list(chain.from_iterable(event.get(name) or [] for event in events))
        for name in ("text", "token_ids", "logprobs", "prompt_logprobs")
    }
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    ends = {"finish_reason": last["finish_reason"], "attempts": last["timing"]["attempts"]}
    return joined | counts | ends | {"text": "".join(joined["text"])}


async def ask_choices_alone(client: httpx.AsyncClient, request: Request) -> Reply:
    """Returns the reply to a request, whose `n` choices are made one at a time: choice i has the seed plus i."""
    if "n" not in request or "use_beam_search" in request:
        return await ask(client, request)
    one_each = [{**request, "n": 1, "seed": request["seed"] + index} for index in range(request["n"])]
    replies = [await ask(client, one) for one in one_each]
    total = sum(reply["completion_tokens"] for reply in replies)
    choices = list(chain.from_iterable(reply["choices"] for reply in replies))
    return {"choices": choices, "completion_tokens": total}


async def one_by_one(run: Run) -> list[Reply]:
    async with connect(run.ring) as client:
        return [await ask(client, request) for request in run.requests]


async def at_once(run: Run) -> list[Reply]:
    async with connect(run.ring) as client:
        return await asyncio.gather(*(ask(client, request) for request in run.requests))


async def flushed(run: Run) -> list[Reply]:
    """At once, with nothing in the cache."""
    async with connect(run.ring) as client:
        await flush(client)
    return await at_once(run)


async def reversed_order(run: Run) -> list[Reply]:
    """At once, the last request first: other rows share a step."""
    replies = await flushed(Run(run.ring, run.requests[::-1]))
    return replies[::-1]


async def preempted(run: Run) -> list[Reply]:
    """At once, on a server with too few pages for all of them."""
    replies = await at_once(run)
    assert counter(run.ring, COUNTED["preemptions"]), "no row was preempted"
    return replies


async def killed(run: Run) -> list[Reply]:
    """At once, with deaths of a scheduler in mid-stream, all of them if there are several engines."""
    return await _disturbed(run, lambda process, num: run.ring.kill(process, signal.SIGKILL, num))


async def restarted(run: Run) -> list[Reply]:
    """At once, with the scheduler replaced on command in mid-stream."""

    def restart(process: str, num: int) -> int:
        with AdminClient(run.ring.run_dir) as line:
            result = line.give(RestartProcess(process, 0.0), CLIENT_TIMEOUT_S)
        assert isinstance(result, Done), result
        return num + 1

    return await _disturbed(run, restart)


async def _disturbed(run: Run, disturb: Callable[[str, int], int]) -> list[Reply]:
    """Returns replies some of which were continued; on a busy machine the first deaths may come too late for that."""
    names = [name for name in run.ring.health()["processes"] if name in ("scheduler", "scheduler-2")]
    num_restarts = dict.fromkeys(names, 0)
    for _ in range(MAX_TRIES):
        task = asyncio.create_task(flushed(run))
        for turn in range(DEATHS):
            name = names[turn % len(names)]
            await asyncio.to_thread(wait_for_tokens, run.ring, len(run.requests), task.done)
            if task.done():
                break
            num_restarts[name] = await asyncio.to_thread(disturb, name, num_restarts[name])
        replies = await task
        if max(reply.get("attempts", 1) for reply in replies) > 1:
            return replies
    raise AssertionError("no stream was continued")


def wait_for_tokens(ring: RingClient, num_tokens: int, is_over: Callable[[], bool]) -> None:
    """Waits until the server has produced this many more tokens, or until `is_over`."""
    begin, end_s = counter(ring, "vllm:generation_tokens"), time.monotonic() + 60.0
    while not is_over() and counter(ring, "vllm:generation_tokens") < begin + num_tokens and time.monotonic() < end_s:
        time.sleep(0.1)


def counter(ring: RingClient, name: str) -> float:
    """Returns the sum of a counter in the metrics over its labels."""
    lines = httpx.get(f"{ring.url}/metrics", timeout=CLIENT_TIMEOUT_S).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}_total"))


def counted(ring: RingClient) -> str:
    """Returns what the server has done in its own ways since its start; a scheduler's counts begin again with it."""
    return ", ".join(f"{counter(ring, name):.0f} {what}" for what, name in COUNTED.items())


NO_DRAFTS, NGRAM = ("--speculative", "none"), ("--speculative", "ngram")

WAYS: dict[str, tuple[tuple[str, ...], Way]] = {
    "at-once": (NO_DRAFTS, at_once),
    "flushed": (NO_DRAFTS, flushed),
    "reversed": (NO_DRAFTS, reversed_order),
    "cached": (NO_DRAFTS, one_by_one),
    "ngram": (NGRAM, flushed),
    "ngram-cached": (NGRAM, at_once),
    "ngram-alone": (NGRAM, one_by_one),
    "draft": (("--speculative", "draft", "--draft-model", "MODEL"), flushed),
    "uncached": (("--no-enable-prefix-caching",), at_once),
    "few-rows": (("--max-num-seqs", "3"), at_once),
    "small-chunks": (("--max-num-batched-tokens", "33", "--max-num-seqs", "20"), at_once),
    "pages-of-4": (("--block-size", "4"), at_once),
    "pages-of-128": (("--block-size", "128"), at_once),
    "preempted": (("--num-pages", "80", "--max-model-len", "1024"), preempted),
    "no-overlap": (("--no-overlap",), at_once),
    "one-thread": (("--cpu-threads", "1"), at_once),
    "killed": ((), killed),
    "killed-ngram": (NGRAM, killed),
    "killed-no-cache": (("--no-keep-kv-cache",), killed),
    "restarted": ((), restarted),
    "engines-killed": ((*NGRAM, "--data-parallel", "2", "--cpu-threads", "1"), killed),
}
"""Flags of the server, and how it gets the requests. Ways with the same flags share a server."""


async def flush(client: httpx.AsyncClient) -> None:
    """Empties the cache, once the last request has left the scheduler."""
    while (reply := await client.post("/flush_cache")).status_code == 409:
        await asyncio.sleep(0.01)
    assert reply.status_code == 200, reply.text


def connect(ring: RingClient) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=ring.url, timeout=CLIENT_TIMEOUT_S, limits=limits)


@contextmanager
def serving(model: str, flags: Sequence[str], open_process: OpenProcess) -> Iterator[RingClient]:
    arguments = ["--model", model, *FLAGS, *(model if flag == "MODEL" else flag for flag in flags)]
    with started_server(arguments, READY_TIMEOUT_S, open_process) as (server, target):
        try:
            yield RingClient(f"http://{target.host}:{target.port}", server.run_dir)
        except BaseException:
            print(server.log_text(), file=sys.stderr)
            raise


async def alone(run: Run) -> list[Reply]:
    """The reference: one request at a time, with nothing in the cache."""
    replies: list[Reply] = []
    async with connect(run.ring) as client:
        for request in run.requests:
            reply = await ask_choices_alone(client, request)
            await flush(client)
            replies.append(reply)
    return replies


def compare(got: Sequence[Reply], expected: Sequence[Reply], requests: Sequence[Request]) -> list[str]:
    """Returns a line for each reply that differs."""
    lines: list[str] = []
    for index, (now, before) in enumerate(zip(got, expected, strict=True)):
        fields = [name for name in before if name != "attempts" and now[name] != before[name]]
        if fields:
            kind = {name: value for name, value in requests[index].items() if name not in ("prompt", "seed")}
            shown = [f"{name}: {str(now[name])[:300]} instead of {str(before[name])[:300]}" for name in fields[:1]]
            lines.append(f"request {index} {kind} differs in {', '.join(fields)}: {shown}")
    return lines


def check(
    model: str,
    names: Sequence[str],
    flags: Sequence[str],
    requests: Sequence[Request],
    open_process: OpenProcess = subprocess.Popen,
) -> dict[str, list[str]]:
    """Returns the differences by way."""
    found: dict[str, list[str]] = {}
    with serving(model, flags, open_process) as ring:
        expected = asyncio.run(alone(Run(ring, requests)))
    of_flags: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        of_flags.setdefault(WAYS[name][0], []).append(name)
    for more, ways in of_flags.items():
        with serving(model, (*flags, *more), open_process) as ring:
            for name in ways:
                begin_s = time.monotonic()
                found[name] = compare(asyncio.run(WAYS[name][1](Run(ring, requests))), expected, requests)
                same = len(requests) - len(found[name])
                of_run = f"{time.monotonic() - begin_s:.0f} s; {counted(ring)}"
                print(f"{name}: {same} of {len(requests)} the same ({of_run})", flush=True)
                print(*found[name][:4], sep="\n", end="\n" if found[name] else "", flush=True)
    return found


def split_arguments(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns our own arguments, and those after `--`."""
    end = words.index("--") if "--" in words else len(words)
    return list(words[:end]), list(words[end + 1 :])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ring.same_texts", description=__doc__.partition("\n")[0])
    parser.add_argument("ways", nargs="*", help=f"default: all of {', '.join(WAYS)}; flags of the server after --")
    parser.add_argument("--model", default=str(ROOT / "assets" / "smollm2-135m-instruct"), metavar="DIR")
    parser.add_argument("--requests", type=int, default=80, metavar="N", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="of each (default: %(default)s)")
    own, flags = split_arguments(sys.argv[1:])
    arguments = parser.parse_args(own)
    if unknown := set(arguments.ways) - WAYS.keys():
        parser.error(f"there is no way {', '.join(sorted(unknown))}")
    requests = make_requests(arguments.requests, arguments.tokens)
    found = check(arguments.model, arguments.ways or list(WAYS), flags, requests)
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
