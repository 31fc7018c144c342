"""What checkpoints of recurrent states are worth: chats of a trace with Qwen3.5, most layers of which are recurrent.

    python -m benchmarks.experiments.checkpoints_0114.bench_chats TRACE --json FILE

Hits: the scheduler serves one in twelve chats of a Mooncake trace, of full length and in the trace's rhythm, without
computing. Pages and states are those of Qwen3.5-0.8B, in memory of several sizes. With "full attention" the same
memory holds pages only, and a prompt continues after any of them: this is the upper bound for a model of recurrent
layers. With --rewritten 4, chats are as with Qwen3.5's template without reasoning.

Time to first token: schedulers with and without prefix caching serve chats of at least three turns, one at a time, with
the first layers of Qwen3.5-0.8B (three of Gated DeltaNet and one of attention) and random weights. The lengths of
prompts and answers are those of the trace. The clock is the CPU time of one thread.

Streams: 64 prompts of the trace at once, in a small KV cache. The growth of the process is compared with its budget.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.experiments.checkpoints_0114.chats import Served, Turn, read_chats, serve_chats
from benchmarks.model_shapes import configured_shape, make_shape, read_shape
from benchmarks.result_file import write_result
from extras.whatif.cost_model import StepSize
from extras.whatif.drive import SkippingClock
from extras.whatif.settings import Setting
from extras.whatif.simulation import SimulatedRunner
from messages.config.server import CacheConfig, Config, ModelFacts, SchedulingConfig
from messages.errors import SluiceError
from scheduler_proc.computing.kv_cache.page_sizes import PageSizes, page_bytes, state_bytes
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.offline import no_report

SHAPE = "qwen3.5-0.8b"
CONTEXT, PAGE_SIZE, VOCAB_SIZE = 131_072, 16, 50_000
GB = 1e9
TOKENS_PER_S, STEP_S = 20_000, 0.01
"""The simulated device computes this number of tokens of prompts; each step takes `STEP_S` in addition."""
STEP_TOKENS = 8192
NUM_ROWS = 64

PART_VOCAB_SIZE = 3000
PART = make_shape(SHAPE, 4) | {"vocab_size": PART_VOCAB_SIZE}
"""The first layers, with a small vocabulary."""
STREAMS_MEMORY_GIB = 0.5
TTFT_CONTEXT, TTFT_TURNS = 8192, 3
MODEL_FLAGS = ["--device", "cpu", "--cpu-threads", "1", "--max-model-len", str(TTFT_CONTEXT), "--dtype", "bfloat16"]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the trace cannot be read or the model cannot be served."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake trace, as conversation_trace.jsonl")
    add("--one-in", type=int, default=12, help="for hits, serve one in this many chats (default: %(default)s)")
    add("--rewritten", type=int, metavar="N", help="for hits, the next turn replaces the last N tokens of a prompt")
    add("--memory-gb", type=float, nargs="+", default=[16.0, 32.0, 64.0, 128.0], help="default: %(default)s")
    add("--chats", type=int, default=8, help="for the time to first token (default: %(default)s)")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        results = {name: PARTS[name](options) for name in options.parts}
    except SluiceError as error:
        print(f"bench_chats: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "chats", results)
    return 0


class UncomputedRunner(SimulatedRunner):
    """A simulated device with a pool of states: their number, and the pages between checkpoints of a long prompt."""

    def __init__(self, num_pages: int, states: tuple[int, int] | None):
        super().__init__(_step_seconds, Setting(NUM_ROWS, num_pages, STEP_TOKENS), can_overlap=False)
        self.states = states


def _step_seconds(size: StepSize) -> float:
    return STEP_S + size.prefill_tokens / TOKENS_PER_S


def measure_hits(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the shares of prompt tokens that were cached, by the memory and by what it holds."""
    chats = read_chats(options.trace, options.one_in, CONTEXT, VOCAB_SIZE, num_rewritten=options.rewritten)
    found: dict[str, Any] = {"chats": len(chats), "requests": sum(map(len, chats))}
    for gigabytes in options.memory_gb:
        shares: dict[str, Any] = {}
        for name, (num_pages, states) in divide_memory(gigabytes).items():
            served = serve_uncomputed(chats, UncomputedRunner(num_pages, states))
            shares[name] = {"pages": num_pages, "states": states and states[0], **describe_hits(served)}
            print(f"{gigabytes:g} GB, {name}: {shares[name]}", flush=True)
        found[f"{gigabytes:g} GB"] = shares
    return found


def divide_memory(gigabytes: float) -> dict[str, tuple[int, tuple[int, int] | None]]:
    """Returns the pages and states that this memory holds, by what holds a token's past."""
    model, placement = read_shape(make_shape(SHAPE), CONTEXT), Placement(torch.device("cpu"), torch.bfloat16)
    own_bytes, num_attentions = page_bytes(model, PAGE_SIZE, placement), len(model.find(AttentionDescription))
    sizes = PageSizes(
        own_bytes,
        max_num_seqs=NUM_ROWS,
        pages_per_context=CONTEXT // PAGE_SIZE,
        state_bytes=state_bytes(model, placement),
    )
    num_pages = sizes.fit(int(gigabytes * GB))
    return {
        "checkpoints": (num_pages, (sizes.count_states(num_pages), sizes.pages_per_state)),
        "pages alone": (int(gigabytes * GB) // own_bytes, None),
        "attention in all layers": (int(gigabytes * GB) * num_attentions // (own_bytes * len(model.layers)), None),
    }


def serve_uncomputed(chats: Sequence[Sequence[Turn]], runner: UncomputedRunner) -> Served:
    facts = ModelFacts(
        model_dir="", tokenizer_dir="", served_names=(SHAPE,), vocab_size=VOCAB_SIZE, max_model_len=CONTEXT
    )
    cache, scheduling = CacheConfig(block_size=PAGE_SIZE), SchedulingConfig(max_num_seqs=NUM_ROWS)
    config = Config(cache=cache, scheduling=scheduling, facts=facts)
    return serve_chats(chats, config, runner, runner.clock, speed=1.0)


def describe_hits(served: Served) -> dict[str, Any]:
    kept = sum(served.num_kept)
    in_chats = sum(cached for cached, num in zip(served.num_cached, served.num_kept, strict=True) if num)
    return {
        "cached_share": round(sum(served.num_cached) / sum(served.num_prompt), 4),
        "share_of_repeated_tokens": round(in_chats / kept, 4),
    }


def measure_ttft(options: argparse.Namespace) -> dict[str, Any]:
    """Returns times to first token with and without prefix caching, of chats that have the device to themselves."""
    every = read_chats(options.trace, 1, TTFT_CONTEXT, PART_VOCAB_SIZE, TTFT_TURNS)
    chats = every[:: len(every) // options.chats][: options.chats]
    found: dict[str, Any] = {"chats": len(chats), "requests": sum(map(len, chats))}
    for name, flags in SIDES.items():
        served = serve_computed(chats, flags)
        found[name] = {"ttft_ms": describe_ttft(served), **describe_hits(served)}
        print(f"{name}: {found[name]}", flush=True)
    return found


SIDES = {"without": ["--no-enable-prefix-caching"], "with": []}


def describe_ttft(served: Served) -> dict[str, float]:
    """Returns the medians of the first turns and of the others, in milliseconds."""
    turns = list(zip(served.is_first, served.ttft_s, strict=True))
    return {
        name: round(1e3 * statistics.median(seconds for is_own, seconds in turns if is_own == is_first), 1)
        for name, is_first in {"first turns": True, "later turns": False}.items()
    }


def serve_computed(chats: Sequence[Sequence[Turn]], flags: Sequence[str]) -> Served:
    """Serves each chat with an empty cache and the first layers of the model, on one thread."""
    together = Served()
    with configured_shape(PART, [*MODEL_FLAGS, *flags]) as config:
        runner = load_runner(config, no_report)
        for chat in chats:
            together.extend(serve_chats([chat], config, runner, SkippingClock(time.process_time)))
    return together


def measure_streams(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the memory that this process takes for chats at once, next to the budget of the KV cache."""
    every = read_chats(options.trace, 1, TTFT_CONTEXT, PART_VOCAB_SIZE)
    chats = [chat[:1] for chat in every[:: len(every) // NUM_ROWS][:NUM_ROWS]]
    flags = [*MODEL_FLAGS, "--kv-cache-memory-gb", str(STREAMS_MEMORY_GIB), "--max-num-seqs", str(NUM_ROWS)]
    with configured_shape(PART, flags) as config:
        runner, process = load_runner(config, no_report), psutil.Process()
        before_bytes = process.memory_info().rss
        served = serve_chats(chats, config, runner, SkippingClock(), watch=lambda: process.memory_info().rss)
    names = ("running", "decoding", "pages_all", "pages_in_use", "state_slots_all", "state_slots_in_use")
    return {
        "budget_mib": STREAMS_MEMORY_GIB * 1024,
        "most_growth_mib": round((served.max_watched - before_bytes) / 2**20, 1),
        "requests": len(chats),
        "tokens": sum(served.num_prompt) + sum(turn.num_output for (turn,) in chats),
        "preemptions": served.gauges["preemptions"],
        "most": {name: served.max_gauges[name] for name in names},
    }


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "hits": measure_hits,
    "ttft": measure_ttft,
    "streams": measure_streams,
}


if __name__ == "__main__":
    raise SystemExit(main())
