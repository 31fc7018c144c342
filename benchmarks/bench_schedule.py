"""The scheduler's decisions without a model: planning and committing steps, admission, the radix tree.

python -m benchmarks.bench_schedule [--json FILE]
"""

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.result_file import write_result
from messages.columns import pack_float32, pack_int32, unpack_int32
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from messages.ring.steps import Batch, ForwardOutput, LogprobColumns
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.radix import RadixTree
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget

PAGE_SIZE = 16
NUM_PAGES = 65_536
"""A million tokens: what an H200 holds for a model of 0.6 billion parameters."""
VOCAB_SIZE = 50_257
MAX_MODEL_LEN = 40_960

Row = dict[str, str | float]


def make_scheduler(max_num_seqs: int = 256) -> Scheduler:
    limits = Limits(MAX_MODEL_LEN, VOCAB_SIZE, (VOCAB_SIZE - 1,))
    return Scheduler(BlockAllocator(NUM_PAGES, PAGE_SIZE), limits, Budget(max_num_seqs, 8192))


CHANGES: dict[str, dict[str, Any]] = {
    "": {},
    ", biases and bad words": {
        "bias_ids": pack_int32(range(20)),
        "bias_values": pack_float32([1.5] * 20),
        "bad_word_ids": tuple(pack_int32(range(first, first + 3)) for first in range(20)),
    },
    ", penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.5},
    ", logprobs": {"num_logprobs": 5},
}
"""Parameters beyond those of every request, by what they are called in the table."""


def message(uid: int, input_ids: bytes, max_tokens: int = 20_000, **params: Any) -> UserMsg:
    return UserMsg(uid, 0, input_ids, SamplingParams(max_tokens, temperature=0.6, seed=uid, **params), Stamps())


def random_ids(chance: random.Random, num_tokens: int) -> bytes:
    return pack_int32(chance.choices(range(VOCAB_SIZE - 1), k=num_tokens))


def output_of(batch: Batch) -> ForwardOutput:
    """Returns a result in which every row continues; in `batch`, all rows want logprobs or none."""
    num_rows, logprobs = batch.num_sampled, None
    if batch.num_logprobs:
        num_top = unpack_int32(batch.num_logprobs)[0]
        each, tops = bytes(4 * num_rows), bytes(4 * num_rows * num_top)
        logprobs = LogprobColumns(each, each, num_top, tops, tops)
    return ForwardOutput(batch.step_id, bytes(4 * num_rows), logprobs)


def timed(function: Callable[[], object]) -> float:
    start_ns = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - start_ns) / 1e3


def row(what: str, samples_us: Iterable[float], per: int = 1) -> Row:
    """Returns one line of the table; `per` is how many things each sample is the time of."""
    each = sorted(sample / per for sample in samples_us)
    p99 = each[min(len(each) - 1, int(0.99 * len(each)))]
    return {"what": what, "samples": len(each), "median_us": statistics.median(each), "p99_us": p99}


def measure_decode(
    num_rows: int, context_tokens: int, num_steps: int, change: str = "", is_ahead: bool = False
) -> list[Row]:
    """Times steps in which `num_rows` rows decode, each at its own place within a page.

    With `is_ahead` each is planned while the one before it is in flight.
    """
    chance, scheduler = random.Random(0), make_scheduler()
    for uid in range(num_rows):
        scheduler.receive(message(uid, random_ids(chance, context_tokens + uid % PAGE_SIZE), **CHANGES[change]))
    while scheduler.gauges()["decoding"] < num_rows:
        scheduler.commit(output_of(_planned(scheduler)))
    plans: list[float] = []
    commits: list[float] = []
    in_flight = [_planned(scheduler)] if is_ahead else []
    for _ in range(num_steps):
        scheduler.pop_replies()
        start_ns = time.perf_counter_ns()
        batch = scheduler.schedule()
        plans.append((time.perf_counter_ns() - start_ns) / 1e3)
        assert batch is not None
        assert batch.phase == "decode"
        assert batch.num_decode_rows == num_rows
        assert bool(batch.future_token_indices) == is_ahead
        in_flight.append(batch)
        output = output_of(in_flight.pop(0))
        commits.append(timed(lambda output=output: scheduler.commit(output)))
    name = f"{num_rows} rows, context {context_tokens}{change}{', one ahead' if is_ahead else ''}"
    both = [plan + commit for plan, commit in zip(plans, commits, strict=True)]
    return [row(f"decode: plan, {name}", plans), row(f"decode: commit, {name}", commits), row(f"  both, {name}", both)]


def measure_admission(num_requests: int, shared_tokens: int, own_tokens: int, rounds: int) -> list[Row]:
    """Times taking and admitting requests whose shared beginning is cached."""
    chance = random.Random(1)
    shared = random_ids(chance, shared_tokens)
    takes: list[float] = []
    plans: list[float] = []
    scheduler = make_scheduler()
    for number in range(rounds + 1):
        messages = [
            message(number * num_requests + index, shared + random_ids(chance, own_tokens), max_tokens=1)
            for index in range(num_requests)
        ]
        takes.append(timed(lambda messages=messages: [scheduler.receive(each) for each in messages]))
        plans.append(timed(lambda: scheduler.commit(output_of(_planned(scheduler)))))
        while not scheduler.is_idle:
            scheduler.commit(output_of(_planned(scheduler)))
    name = f"{shared_tokens} cached + {own_tokens} new tokens"
    return [
        row(f"take a request of {name}", takes[1:], per=num_requests),
        row(f"admit, plan, commit one of {num_requests} with {name}", plans[1:], per=num_requests),
    ]


def measure_prefill(num_tokens: int, rounds: int) -> list[Row]:
    """Times the steps of a full token budget: one long prompt of which nothing is cached."""
    chance, scheduler = random.Random(2), make_scheduler()
    plans: list[float] = []
    commits: list[float] = []
    for uid in range(rounds):
        scheduler.receive(message(uid, random_ids(chance, num_tokens), max_tokens=1))
        start_ns = time.perf_counter_ns()
        batch = _planned(scheduler)
        plans.append((time.perf_counter_ns() - start_ns) / 1e3)
        commits.append(timed(lambda batch=batch: scheduler.commit(output_of(batch))))
    name = f"chunk of {num_tokens} tokens"
    return [row(f"prefill: plan, {name}", plans), row(f"prefill: commit, {name}", commits)]


def measure_radix(num_keys: int, num_tokens: int) -> list[Row]:
    """Times the tree alone: keys of which the first half is shared by sixteen."""
    chance = random.Random(3)
    halves = [random_ids(chance, num_tokens // 2) for _ in range(num_keys // 16)]
    keys = [chance.choice(halves) + random_ids(chance, num_tokens // 2) for _ in range(num_keys)]
    num_pages = num_tokens // PAGE_SIZE
    tree = RadixTree(PAGE_SIZE)
    inserts = [
        timed(lambda index=index, key=key: tree.insert(tree.root, b"", key, [*range(index, index + num_pages)]))
        for index, key in enumerate(keys)
    ]
    finds = [timed(lambda key=key: tree.find(tree.root, b"", key)) for key in keys]
    evictions = [timed(lambda: tree.evict(1)) for _ in range(20_000)]
    name = f"{num_tokens} tokens"
    return [
        row(f"radix: insert {name}", inserts),
        row(f"radix: find {name}", finds),
        row("radix: evict one page", evictions),
    ]


def measure_check(rounds: int) -> list[Row]:
    """Times the integrity check with a full cache."""
    chance, scheduler = random.Random(4), make_scheduler()
    for uid in range(NUM_PAGES * PAGE_SIZE // 4096):
        scheduler.receive(message(uid, random_ids(chance, 4096), max_tokens=1))
        while not scheduler.is_idle:
            scheduler.commit(output_of(_planned(scheduler)))
    return [row(f"integrity check of {NUM_PAGES} pages", [timed(scheduler.check) for _ in range(rounds)])]


def _planned(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.pop_replies()
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--steps", type=int, default=2_000, help="decode steps of each size")
    arguments = parser.parse_args()
    gc.freeze()
    rows: list[Row] = []
    for num_rows in (1, 32, 256):
        rows += measure_decode(num_rows, 512, arguments.steps)
    rows += measure_decode(256, 3_000, arguments.steps // 2)  # then the pages are used up
    for num_rows in (1, 32, 256):
        rows += measure_decode(num_rows, 512, arguments.steps, is_ahead=True)
    rows += measure_decode(256, 3_000, arguments.steps // 2, is_ahead=True)
    for change in CHANGES:
        if change:
            rows += measure_decode(256, 512, arguments.steps // 4, change)
    rows += measure_admission(64, 1_920, 100, 20)
    rows += measure_admission(64, 0, 100, 20)
    rows += measure_prefill(8_192, 40)
    rows += measure_radix(1_024, 2_048)
    rows += measure_check(5)
    print(f"{'what':<72}{'samples':>8}{'median µs':>12}{'p99 µs':>12}")
    for line in rows:
        print(f"{line['what']:<72}{line['samples']:>8}{line['median_us']:>12.2f}{line['p99_us']:>12.2f}")
    if arguments.json is not None:
        write_result(arguments.json, "bench_schedule", rows)


if __name__ == "__main__":
    main()
