"""The Python cost of a step on a CPU, next to little arithmetic (12 layers of width 64, one thread).

    python -m benchmarks.experiments.step_cost_0026.bench_step_cost [--rows 1 32] [--json FILE]

Medians of the parts of steps in which all rows decode; `launch` includes its parts. `outside` is the step without
`replay`, the captured forward pass in C (decision 0026).
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.model_shapes import load_shape
from benchmarks.result_file import write_result
from kernels.cpu.capture import CapturedCalls
from messages.channels import Receiver, Sender
from messages.columns import pack_int32
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.computing import runner
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from scheduler_proc.reply_sender import ReplySender

SHAPE: dict[str, object] = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_positions": 128,
    "n_embd": 64,
    "n_layer": 12,
    "n_head": 1,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
PAGE_SIZE, NUM_PAGES, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 512, 8, 64
PARTS_OF_LAUNCH = ((CpuForwardPasses, "prepare"), (CapturedCalls, "replay"), (runner, "compute_result"))

Times = dict[str, list[float]]


def time_calls(owner: Any, name: str, times: Times) -> Any:
    """From now on each call of the attribute adds its microseconds to `times`; returns the attribute as it was."""
    function = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        start_ns = time.perf_counter_ns()
        result = function(*arguments)
        times[name].append((time.perf_counter_ns() - start_ns) / 1e3)
        return result

    setattr(owner, name, timed)
    return function


def measure(num_rows: int, temperature: float, rounds: int, times: Times) -> None:
    """Serves `num_rows` requests at once, `rounds` times; adds the parts of steps in which all decode to `times`."""
    flags = ["--device", "cpu", "--dtype", "bfloat16", "--cpu-threads", "1", "--num-pages", str(NUM_PAGES)]
    runner = load_shape(SHAPE, [*flags, "--max-num-seqs", str(num_rows)])
    scheduler = Scheduler(BlockAllocator(NUM_PAGES, PAGE_SIZE), Limits(128, 64, ()), Budget(num_rows, 512))
    kept = [(owner, name, time_calls(owner, name, times)) for owner, name in PARTS_OF_LAUNCH]
    time_calls(scheduler, "schedule", times)
    time_calls(runner, "launch", times)
    time_calls(scheduler, "commit", times)
    with tempfile.TemporaryDirectory(prefix="sluice-") as scratch:
        receiver: Receiver[ToDetokenizer] = Receiver(Path(scratch) / "s", ToDetokenizer)
        sender: Sender[ToDetokenizer] = Sender(Path(scratch) / "s")
        replies = ReplySender(scheduler, sender)
        gc.freeze()
        for uid in range(rounds * num_rows):
            params = SamplingParams(OUTPUT_TOKENS, temperature=temperature, seed=uid, ignore_eos=True)
            scheduler.receive(UserMsg(uid, 0, pack_int32([uid % 64] * PROMPT_TOKENS), params, Stamps()))
            while (uid + 1) % num_rows == 0 and not scheduler.is_idle:
                counts = {name: len(values) for name, values in times.items()}
                start_ns = time.perf_counter_ns()
                batch = scheduler.schedule()
                assert batch is not None
                scheduler.commit(runner.launch(batch).result())
                sent_ns = time.perf_counter_ns()
                replies.send()
                end_ns = time.perf_counter_ns()
                times["send_replies"].append((end_ns - sent_ns) / 1e3)
                times["step"].append((end_ns - start_ns) / 1e3)
                if batch.phase != "decode" or batch.num_decode_rows != num_rows:
                    for name, values in times.items():
                        del values[counts.get(name, 0) :]
                list(receiver.receive())
        sender.close()
        receiver.close()
    for owner, name, function in kept:
        setattr(owner, name, function)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="default: 1 32")
    parser.add_argument("--rounds", type=int, default=20, help=f"of {OUTPUT_TOKENS} steps each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    lines: list[dict[str, object]] = []
    for num_rows in options.rows:
        for about, temperature in (("greedy", 0.0), ("drawn", 0.8)):
            times: Times = defaultdict(list)
            measure(num_rows, temperature, options.rounds, times)
            medians = {name: statistics.median(values) for name, values in times.items() if values}
            medians["outside"] = medians["step"] - medians.get("replay", 0.0)
            lines.append({"rows": num_rows, "tokens": about, "steps": len(times["step"]), "median_us": medians})
            print(f"{num_rows} rows, {about}: " + ", ".join(f"{name} {us:.0f}" for name, us in medians.items()) + " µs")
    if options.json:
        write_result(options.json, "step_cost", lines)


if __name__ == "__main__":
    main()
