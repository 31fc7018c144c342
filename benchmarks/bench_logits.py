"""What comes after the model's logits: choosing tokens, plain and with logits processing, and logprobs. No model runs.

python -m benchmarks.bench_logits [--json FILE]

Cases take turns, so that a slow minute of the machine falls on all of them.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from benchmarks.result_file import write_result
from kernels.operations.sample import greedy
from messages.columns import pack_float32, pack_int32, pack_int64
from messages.ring.axes import fill_columns
from messages.ring.steps import SAMPLED, Batch, LogitsProcessing, LogprobColumns
from scheduler_proc.computing.backends.cpu.forward_passes import copy_columns
from scheduler_proc.computing.sampling.logprobs import sampled_logprobs
from scheduler_proc.computing.sampling.plan import plan_sampling
from scheduler_proc.computing.sampling.sampler import choose_tokens

NUM_ROWS = 32
VOCAB_SIZE = 50_257
NUM_BIASES = 10
NUM_ALLOWED = 100
HISTORY_TOKENS = 1_000
PROMPT_TOKENS = 500

Case = Callable[[], object]
Row = dict[str, str | float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the result here as well")
    parser.add_argument("--rounds", type=int, default=200, help="how often each case is timed")
    parser.add_argument("--cpu-threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.cpu_threads)
    rows = measure(make_cases(), arguments.rounds)
    print(f"{f'{NUM_ROWS} rows, vocabulary of {VOCAB_SIZE:,}':<72}{'median µs':>12}{'p99 µs':>12}")
    for line in rows:
        print(f"{line['what']:<72}{line['median_us']:>12.0f}{line['p99_us']:>12.0f}")
    if arguments.json is not None:
        write_result(arguments.json, "bench_logits", rows)


def make_cases() -> dict[str, Case]:
    logits_SV = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2
    greedy_batch, drawn_batch = make_batch(0.0), make_batch(0.8)
    tokens_S = choose(logits_SV, greedy_batch)
    cases: dict[str, Case] = {"greedy, the kernel alone": lambda: greedy(logits_SV)}
    for name, batch in (("greedy", greedy_batch), ("drawn", drawn_batch)):
        cases |= {
            f"{name}, {what}": _choosing(logits_SV, batch, processing) for what, processing in make_processing().items()
        }
    for num_top in (0, 1, 5, 20):
        batch = msgspec.structs.replace(greedy_batch, num_logprobs=pack_int32([num_top] * NUM_ROWS))
        cases[f"logprobs, {num_top} alternatives"] = lambda batch=batch: find_logprobs(logits_SV, tokens_S, batch)
    return cases


def _choosing(logits_SV: Tensor, batch: Batch, processing: LogitsProcessing | None) -> Case:
    processed = msgspec.structs.replace(batch, logits_processing=processing)
    return lambda: choose(logits_SV, processed)


def choose(logits_SV: Tensor, batch: Batch) -> Tensor:
    plan = plan_sampling(batch, VOCAB_SIZE)
    return choose_tokens(logits_SV, plan, copy_columns(plan.columns))


def find_logprobs(logits_SV: Tensor, tokens_S: Tensor, batch: Batch) -> LogprobColumns:
    plan = plan_sampling(batch, VOCAB_SIZE)
    return sampled_logprobs(logits_SV, tokens_S, plan, copy_columns(plan.columns)).columns()


def make_batch(temperature: float) -> Batch:
    """Returns a plan of which only the sampling columns count."""
    columns = fill_columns(
        Batch,
        {SAMPLED: NUM_ROWS},
        sample_tokens=pack_int32(range(NUM_ROWS)),
        temperatures=pack_float32([temperature] * NUM_ROWS),
        seeds=pack_int64(range(NUM_ROWS)),
        sample_positions=pack_int64([HISTORY_TOKENS] * NUM_ROWS),
    )
    return Batch(step_id=0, num_decode_rows=NUM_ROWS, num_pages_per_row=0, **columns)


def make_processing() -> dict[str, LogitsProcessing | None]:
    every_row = range(NUM_ROWS)
    penalties = f"penalties after {HISTORY_TOKENS - PROMPT_TOKENS} tokens of output"
    return {
        "no logits processing": None,
        f"{NUM_BIASES} biases in one row": _biases(range(1)),
        f"{NUM_BIASES} biases a row": _biases(every_row),
        f"{NUM_ALLOWED} allowed tokens a row": _allowed(every_row),
        f"repetition penalty over {HISTORY_TOKENS:,} tokens a row": _penalties(every_row, (1.2, 0.0, 0.0)),
        f"frequency and presence {penalties} a row": _penalties(every_row, (1.0, 0.5, 0.5)),
        f"all three {penalties} in one row": _penalties(range(1), (1.2, 0.5, 0.5)),
    }


def _random_ids(num_ids: int) -> bytes:
    return pack_int32(random.Random(num_ids).choices(range(VOCAB_SIZE), k=num_ids))


def _biases(rows: range) -> LogitsProcessing:
    return LogitsProcessing(
        bias_rows=pack_int32(row for row in rows for _ in range(NUM_BIASES)),
        bias_ids=_random_ids(NUM_BIASES * len(rows)),
        bias_values=pack_float32([1.5] * NUM_BIASES * len(rows)),
    )


def _allowed(rows: range) -> LogitsProcessing:
    return LogitsProcessing(
        allowed_rows=pack_int32(rows),
        num_allowed=pack_int32([NUM_ALLOWED] * len(rows)),
        allowed_ids=_random_ids(NUM_ALLOWED * len(rows)),
    )


def _penalties(rows: range, penalties: tuple[float, float, float]) -> LogitsProcessing:
    repetition, frequency, presence = (pack_float32([penalty] * len(rows)) for penalty in penalties)
    return LogitsProcessing(
        penalty_rows=pack_int32(rows),
        repetition_penalties=repetition,
        frequency_penalties=frequency,
        presence_penalties=presence,
        num_history=pack_int32([HISTORY_TOKENS] * len(rows)),
        num_history_prompt=pack_int32([PROMPT_TOKENS] * len(rows)),
        history_ids=_random_ids(HISTORY_TOKENS * len(rows)),
    )


def measure(cases: dict[str, Case], num_rounds: int) -> list[Row]:
    """Returns one line a case; the first two rounds do not count."""
    samples: dict[str, list[float]] = {name: [] for name in cases}
    with torch.inference_mode():
        for _ in range(num_rounds + 2):
            for name, case in cases.items():
                start_ns = time.perf_counter_ns()
                case()
                samples[name].append((time.perf_counter_ns() - start_ns) / 1e3)
    return [_line(name, sorted(times[2:])) for name, times in samples.items()]


def _line(name: str, samples_us: list[float]) -> Row:
    p99 = samples_us[min(len(samples_us) - 1, int(0.99 * len(samples_us)))]
    return {"what": name, "samples": len(samples_us), "median_us": statistics.median(samples_us), "p99_us": p99}


if __name__ == "__main__":
    main()
