"""What serving costs in counts, which do not vary with the load of the machine, and the limit of each.

    python -m tests.serving_counts

prints the counts of this working tree with their limits. A count above its limit fails `tests/test_serving_counts.py`.
A limit is raised by a commit of its own, with the reason.
"""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.bench_wire import word_vocabulary
from detokenizer_proc.detokenizer import Detokenizer
from messages.ring.replies import DetokenizeMsg, OpenStream, ToDetokenizer
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.clients import user_msg

ROOT = Path(__file__).resolve().parents[1]
CONTEXT, PAGE_SIZE = 256, 16
STEPS = 2 * PAGE_SIZE
"""Decode steps that are counted: their rows cross the same number of page borders in every run."""

WARM_UP_STEPS = 4
NUM_PROMPTS, PROMPT_TOKENS = 8, 100

LIMITS = {
    "calls of Python functions, per decode step of 1 row": 170,
    "calls of Python functions, per decode step of 32 rows": 220,
    "calls of Python functions, per prompt of 100 tokens": 1_110,
    "calls of C functions from Python, per decode step of 1 row": 125,
    "calls of C functions from Python, per decode step of 32 rows": 199,
    "calls of C functions from Python, per prompt of 100 tokens": 960,
    "calls of C kernels, per decode step of a model with 3 layers": 31,
    "blocks of memory that 32 decode steps of 32 rows leave behind, per row": 9,
    "messages to the detokenizer, per decode step of 32 rows": 1,
    "bytes to the detokenizer, per token of 32 rows": 18,
    "bytes to the detokenizer, per token of 1 row": 58,
    "bytes to the frontend, per token of 32 rows": 24,
    "bytes to the frontend, per token of 1 row": 63,
    "minor page faults of the first 8 prompts": 1_000,
    "modules of the launcher before a start": 320,
    "modules of a frontend": 630,
    "modules of a tokenizer": 325,
    "modules of a detokenizer": 275,
    "modules of a scheduler, torch and what it imports included": 1_400,
}
"""A little above the counts of Python 3.11. Modules have more room, for other versions of libraries."""

PROGRAMS = {
    "modules of the launcher before a start": "import launch, supervisor.supervisor",
    "modules of a frontend": "import frontend.process",
    "modules of a tokenizer": "import tokenizer_proc.process",
    "modules of a detokenizer": "import detokenizer_proc.process",
    "modules of a scheduler, torch and what it imports included": "import scheduler_proc.process; "
    "from scheduler_proc.computing.torch_import import import_torch; import_torch(); "
    "import scheduler_proc.computing.load_runner",
}


class CallCounter:
    """Counts the calls that this thread makes while it is entered."""

    def __init__(self) -> None:
        self.num_python = self.num_c = 0

    def __enter__(self) -> "CallCounter":
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self.num_c -= 1  # the one that ends it

    def _count(self, _frame: object, event: str, _argument: object) -> None:
        self.num_python += event == "call"
        self.num_c += event == "c_call"


class Serving:
    """A scheduler with a real model, whose replies are counted and dropped."""

    def __init__(self, runner: Runner):
        self.runner = runner
        cache = open_cache(600, PAGE_SIZE, True, None, None)
        limits = Limits(CONTEXT, VOCAB_SIZE)
        self.scheduler = Scheduler(cache, limits, Budget(max_num_seqs=32, max_num_batched_tokens=1024))
        # Steps take no time: the scheduler plans by the times of prompts, and on a busy machine calls more functions.
        clock = repeat(0.0).__next__
        self.stepper = Stepper(self.scheduler, runner, StepTimes(), clock, clock)
        self._num_requests = 0

    def add(self, num_rows: int, num_tokens: int) -> None:
        for _ in range(num_rows):
            self._num_requests += 1
            prompt = [(7 * self._num_requests + 3 * place) % VOCAB_SIZE for place in range(num_tokens)]
            self.scheduler.receive(user_msg(self._num_requests, prompt, max_tokens=CONTEXT))

    def step(self) -> list[ToDetokenizer]:
        self.stepper.step(self.stepper.plan(), 0.0)
        return self.scheduler.pop_replies()

    def finish(self) -> None:
        while not self.scheduler.is_idle or self.stepper.has_step:
            self.step()


def count_all() -> dict[str, float]:
    """Returns every count of `LIMITS`."""
    with TemporaryDirectory() as directory:
        build_checkpoint(Path(directory), "llama-gqa-tied", max_position_embeddings=CONTEXT, intermediate_size=96)
        config = make_config(Path(directory), block_size=PAGE_SIZE, num_pages=600, kv_populate="never")
        serving = Serving(load_runner(config, lambda _text, _fraction: None))
        found = dict(count_prompts(serving))
        for num_rows in (1, 32):
            found |= count_decoding(serving, num_rows)
    return found | {name: count_modules(program) for name, program in PROGRAMS.items()}


def count_prompts(serving: Serving) -> Iterator[tuple[str, float]]:
    """Yields what prompts cost: the first ones of a server in page faults, one after them in calls."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    serving.add(NUM_PROMPTS, PROMPT_TOKENS)
    serving.step()
    yield "minor page faults of the first 8 prompts", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    serving.finish()
    serving.add(1, PROMPT_TOKENS)
    with CallCounter() as counter:
        serving.step()
    serving.finish()
    yield "calls of Python functions, per prompt of 100 tokens", counter.num_python
    yield "calls of C functions from Python, per prompt of 100 tokens", counter.num_c


def count_decoding(serving: Serving, num_rows: int) -> dict[str, float]:
    """Returns what decode steps of `num_rows` rows cost."""
    serving.add(num_rows, 1)
    replies: list[ToDetokenizer] = []
    for _ in range(WARM_UP_STEPS):
        replies += serving.step()
    steps: list[ToDetokenizer] = []
    blocks = sys.getallocatedblocks()
    with CallCounter() as counter:
        for _ in range(STEPS):
            steps += serving.step()
    per_row = "1 row" if num_rows == 1 else f"{num_rows} rows"
    found: dict[str, float] = {
        f"calls of Python functions, per decode step of {per_row}": counter.num_python / STEPS,
        f"calls of C functions from Python, per decode step of {per_row}": counter.num_c / STEPS,
    }
    if num_rows > 1:
        found["messages to the detokenizer, per decode step of 32 rows"] = len(steps) / STEPS
        left = (sys.getallocatedblocks() - blocks) / num_rows
        found["blocks of memory that 32 decode steps of 32 rows leave behind, per row"] = left
        passes = serving.runner.forward_passes
        assert isinstance(passes, CpuForwardPasses)
        calls, _ = next(capture for (_, rows), capture in passes.captures.items() if rows == num_rows)
        found["calls of C kernels, per decode step of a model with 3 layers"] = len(calls.array)
    num_tokens = num_rows * STEPS
    found[f"bytes to the detokenizer, per token of {per_row}"] = num_bytes(steps) / num_tokens
    found[f"bytes to the frontend, per token of {per_row}"] = num_bytes(detokenize(replies, steps)) / num_tokens
    serving.finish()
    return found


def detokenize(before: list[ToDetokenizer], steps: list[ToDetokenizer]) -> list[object]:
    """Returns the detokenizer's replies to `steps`."""
    detokenizer = Detokenizer(word_vocabulary(VOCAB_SIZE)[0])
    for message in before:
        if isinstance(message, OpenStream | DetokenizeMsg):
            detokenizer.handle(message)
    return [reply for message in steps for reply in detokenizer.handle(message)[0]]


def num_bytes(messages: list[ToDetokenizer] | list[object]) -> int:
    return sum(len(msgspec.msgpack.encode(message)) for message in messages)


def count_modules(program: str) -> int:
    """Returns the number of modules of a new process after `program`."""
    code = f"import sys; {program}; print(len(sys.modules))"
    command = [sys.executable, "-P", "-c", code]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def main(show: Callable[[str], None] = print) -> int:
    """Returns 1 if a count is above its limit."""
    counts = count_all()
    assert counts.keys() == LIMITS.keys()
    for name, count in counts.items():
        show(f"{count:12,.1f} of {LIMITS[name]:10,}  {name}{' (above)' if count > LIMITS[name] else ''}")
    return int(any(count > LIMITS[name] for name, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
