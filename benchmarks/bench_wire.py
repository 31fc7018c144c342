"""The cost of a step outside the model: from the scheduler's tokens to frames that a client can read.

    python -m benchmarks.bench_wire --rows 1 32 256 --steps 300 --json FILE

Each stage runs the code of its process, one after the other in this process, over real sockets. The kernel's transfer
time is not counted. The detokenizer gets random tokens of a byte-level vocabulary of words, or of --tokenizer. The last
measurement is one prompt on its way to the scheduler.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models

from benchmarks.result_file import write_result
from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import Vocabulary, load_vocabulary, vocabulary_of
from frontend.api.generate.generate_events import tokens_frame
from frontend.requests.generation import Generation
from frontend.requests.registry import Registry
from messages.channels import Receiver, Sender, Waiter
from messages.columns import pack_int32, pack_int64
from messages.ring.peers import ToFrontend
from messages.ring.replies import DetokenizeMsg, OpenStream, ToDetokenizer
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg, ToScheduler, ToTokenizer, UserMsg

NUM_WARMUP = 20
PROMPT_TOKENS = 4096
ARRIVAL_TIMEOUT_S = 10.0
STOP_STRINGS = ("\n\n", "User:", "the end.", "and so on.")
"""The last two begin often in random words and are never there."""

Times = dict[str, list[int]]
"""Nanoseconds of each run, by stage."""


class Percentiles(msgspec.Struct, frozen=True):
    """The times of one stage, in microseconds."""

    median_us: float
    p99_us: float


class StepCost(msgspec.Struct, frozen=True):
    """One step of `num_rows` rows, each with `num_stop_strings` stop strings."""

    num_rows: int
    num_stop_strings: int
    stages: dict[str, Percentiles]


class WireCosts(msgspec.Struct, frozen=True):
    steps: list[StepCost]
    prompts: dict[str, Percentiles]


class Stopwatch:
    """Adds the time since the last lap to a stage."""

    def __init__(self, times: Times):
        self._times = times
        self._last_ns = time.perf_counter_ns()

    def start(self) -> None:
        self._last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        now_ns = time.perf_counter_ns()
        self._times.setdefault(stage, []).append(now_ns - self._last_ns)
        self._last_ns = time.perf_counter_ns()


class Pipe:
    """A channel with both its ends here."""

    def __init__(self, stack: ExitStack, path: Path, union: Any):
        self._receiver: Receiver[Any] = stack.enter_context(closing(Receiver(path, union)))
        self._sender: Sender[Any] = stack.enter_context(closing(Sender(path)))
        self._waiter = Waiter()
        self._waiter.add_channel(self._receiver)
        self.send = self._sender.send

    def take(self, watch: Stopwatch) -> Any:
        """Waits for a message, then starts the watch and takes it."""
        self._waiter.wait(ARRIVAL_TIMEOUT_S)
        watch.start()
        (message,) = self._receiver.receive(limit=1)
        return message


class Stream:
    """The three processes' parts for `num_rows` open requests."""

    def __init__(self, vocabulary: Vocabulary, num_rows: int, stop: tuple[str, ...]):
        self.detokenizer = Detokenizer(vocabulary)
        self.registry = Registry(1, on_end=lambda *_: None, on_step=lambda *_: None)
        self.generations = [open_generation(self.registry) for _ in range(num_rows)]
        self.uids = [generation.uid for generation in self.generations]
        for uid in self.uids:
            self.detokenizer.open_stream(OpenStream(uid, 0, stop))


def open_generation(registry: Registry) -> Generation:
    message = TokenizeMsg(registry.next_uid(), 0, "x", b"", SamplingParams(max_tokens=1000), Stamps())
    generation = Generation(message, f"bench-{message.uid}")
    registry.add(generation)
    return generation


def measure_step(
    vocabulary: Vocabulary, num_ids: int, num_rows: int, num_steps: int, stop: tuple[str, ...]
) -> StepCost:
    """Returns the cost of each stage over `num_steps` steps of random tokens."""
    times: Times = {}
    stream = Stream(vocabulary, num_rows, stop)
    chance = random.Random(num_rows)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sl-", dir="/tmp")))
        to_detokenizer = Pipe(stack, directory / "detokenizer.sock", ToDetokenizer)
        to_frontend = Pipe(stack, directory / "frontend.sock", ToFrontend)
        for step_id in range(NUM_WARMUP + num_steps):
            token_ids = [chance.randrange(num_ids) for _ in range(num_rows)]
            run_step(stream, step_id, token_ids, (to_detokenizer, to_frontend), Stopwatch(times))
    times["all stages"] = [sum(runs) for runs in zip(*times.values(), strict=True)]
    return StepCost(num_rows, len(stop), percentiles_of(times))


def run_step(
    stream: Stream, step_id: int, token_ids: Sequence[int], pipes: tuple[Pipe, Pipe], watch: Stopwatch
) -> None:
    to_detokenizer, to_frontend = pipes
    watch.start()
    columns = (pack_int64(stream.uids), pack_int32([0] * len(token_ids)), pack_int32(token_ids))
    to_detokenizer.send(DetokenizeMsg(step_id, *columns))
    watch.lap("scheduler: columns, encode, send")
    message = to_detokenizer.take(watch)
    watch.lap("detokenizer: receive, decode")
    replies, _ = stream.detokenizer.handle_step(message)
    watch.lap("detokenizer: ids to text")
    to_frontend.send(replies)
    watch.lap("detokenizer: encode, send")
    message = to_frontend.take(watch)
    watch.lap("frontend: receive, decode")
    stream.registry.receive(message)
    watch.lap("frontend: match to requests")
    for generation in stream.generations:
        if generation.has_step:
            increment = generation.pop_step()
            tokens_frame(generation.uid, increment.text, increment.token_ids)
    watch.lap("frontend: frames")


def measure_prompts(num_runs: int) -> dict[str, Percentiles]:
    """Returns what a prompt of `PROMPT_TOKENS` tokens costs to encode and decode, as text, as ids and on its way on."""
    ids = pack_int32(range(PROMPT_TOKENS))
    params = SamplingParams(max_tokens=128)
    text = "four " * PROMPT_TOKENS
    messages: dict[str, tuple[Any, Any]] = {
        "TokenizeMsg, text": (TokenizeMsg(1, 0, text, b"", params, Stamps()), ToTokenizer),
        "TokenizeMsg, ids": (TokenizeMsg(1, 0, None, ids, params, Stamps()), ToTokenizer),
        "UserMsg": (UserMsg(1, 0, ids, params, Stamps()), ToScheduler),
    }
    times: Times = {}
    encoder = msgspec.msgpack.Encoder()
    for name, (message, union) in messages.items():
        decode: Callable[[bytes], Any] = msgspec.msgpack.Decoder(union).decode
        for _ in range(NUM_WARMUP + num_runs):
            watch = Stopwatch(times)
            frame = encoder.encode(message)
            watch.lap(f"{name}: encode")
            decode(frame)
            watch.lap(f"{name}: decode")
    return percentiles_of(times)


def percentiles_of(times: Times) -> dict[str, Percentiles]:
    return {stage: percentiles(runs[NUM_WARMUP:]) for stage, runs in times.items()}


def percentiles(times_ns: list[int]) -> Percentiles:
    p99_ns = sorted(times_ns)[int(0.99 * (len(times_ns) - 1))]
    return Percentiles(round(statistics.median(times_ns) / 1e3, 2), round(p99_ns / 1e3, 2))


def word_vocabulary(num_words: int = 50_000) -> tuple[Vocabulary, int]:
    """Returns a byte-level vocabulary of words of 1 to 8 letters, most after a space, and its size."""
    chance = random.Random(0)
    words: dict[str, int] = {}
    while len(words) < num_words:
        letters = "".join(chance.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(chance.randint(1, 8)))
        words.setdefault(chance.choice(("Ġ", "Ġ", "")) + letters, len(words))
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=next(iter(words))))
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return vocabulary_of(tokenizer, num_words), num_words


def print_table(title: str, stages: dict[str, Percentiles]) -> None:
    print(f"\n{title}\n{'':36}{'median µs':>11}{'p99 µs':>11}")
    for stage, cost in stages.items():
        print(f"{stage:36}{cost.median_us:11.1f}{cost.p99_us:11.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256], help="rows of a step")
    parser.add_argument("--steps", type=int, default=300, help="steps that are measured for each number of rows")
    parser.add_argument("--tokenizer", help="directory with a tokenizer.json (default: a vocabulary of random words)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result to this file")
    arguments = parser.parse_args()
    vocabulary, num_ids = word_vocabulary()
    if arguments.tokenizer:
        num_ids = Tokenizer.from_file(str(Path(arguments.tokenizer) / "tokenizer.json")).get_vocab_size()
        vocabulary = load_vocabulary(arguments.tokenizer, num_ids)
    steps = [measure_step(vocabulary, num_ids, num_rows, arguments.steps, ()) for num_rows in arguments.rows]
    steps.append(measure_step(vocabulary, num_ids, max(arguments.rows), arguments.steps, STOP_STRINGS))
    costs = WireCosts(steps, measure_prompts(arguments.steps))
    for step in costs.steps:
        print_table(f"a step of {step.num_rows} rows, {step.num_stop_strings} stop strings each", step.stages)
    print_table(f"a prompt of {PROMPT_TOKENS} tokens", costs.prompts)
    if arguments.json:
        write_result(arguments.json, "wire", costs)


if __name__ == "__main__":
    main()
