"""The cost of grammars: the bitmask of a row, and streams with a grammar compared with streams without.

    python -m benchmarks.experiments.structured_output_0044.bench_grammars --shape gpt2-124m --tokenizer DIR

Random allowed tokens follow each schema; the bitmask of each token and its acceptance are timed as the scheduler calls
them. Then rows with and without a grammar take turns on one runner with random weights in this process. Each turn
reports the time of a decode step and its CPU time, which is the better measure if other programs use the cores.
"""

import argparse
import json
import random
import statistics
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from llguidance import LLMatcher

from benchmarks.model_shapes import SHAPES, configured_shape
from benchmarks.result_file import write_result
from messages.columns import pack_int32
from messages.config.server import Config
from messages.errors import SluiceError, UsageError
from messages.ring.requests import Grammar, SamplingParams, Stamps, UserMsg
from runtime.grammars import GrammarCompiler
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding.sampling.grammars import make_grammar
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.grammar_builder import GrammarBuilder
from scheduler_proc.stepper import Runner

STRING = {"type": "string"}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
    },
    "required": ["name", "age", "email", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "any object": LLMatcher.grammar_from_json_schema({"type": "object"}),
    "person": LLMatcher.grammar_from_json_schema(PERSON),
    "list of persons": LLMatcher.grammar_from_json_schema({"type": "array", "items": PERSON, "minItems": 50}),
    "union": LLMatcher.grammar_from_json_schema({"anyOf": [PERSON, {"type": "array", "items": STRING}]}),
    "recursive": LLMatcher.grammar_from_json_schema(
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {"value": STRING, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                    "required": ["value"],
                    "additionalProperties": False,
                }
            },
        }
    ),
    "date": LLMatcher.grammar_from_regex(r"(\d{4}-\d{2}-\d{2} ){40}"),
}
STREAM_GRAMMAR = LLMatcher.grammar_from_json_schema({"type": "array", "items": PERSON, "minItems": 1_000})
WALK_TOKENS = 200
NEVER = 1_000_000


class WalkTimes(msgspec.Struct, frozen=True):
    """Microseconds, over all tokens of a walk; `first_ms` is what compiling takes, `cpu` the thread's own time."""

    first_ms: float
    num_tokens: int
    bitmask_p50_us: float
    bitmask_p99_us: float
    bitmask_cpu_p50_us: float
    bitmask_cpu_p99_us: float
    accept_p50_us: float
    accept_p99_us: float


class StreamTimes(msgspec.Struct, frozen=True):
    """Decode steps of `num_rows` rows: medians over all turns, and the ratio of each pair of turns' medians."""

    num_rows: int
    num_turns: int
    plain_step_ms: float
    grammar_step_ms: float
    speed: float
    plain_cpu_ms: float
    grammar_cpu_ms: float
    cpu_speed: float


class Samples(NamedTuple):
    bitmask_us: list[float]
    bitmask_cpu_us: list[float]
    accept_us: list[float]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 2 on bad usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="gpt2-124m", help="default: %(default)s")
    add("--tokenizer", type=Path, required=True, help="directory with the tokenizer.json of the shape")
    add("--rows", type=int, default=32, help="default: %(default)s")
    add("--turns", type=int, default=6, help="of rows with and of rows without (default: %(default)s)")
    add("--steps", type=int, default=40, help="timed in each turn (default: %(default)s)")
    add("--walks", type=int, default=8, help="for each grammar (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    shape = SHAPES[options.shape]
    try:
        with configured_shape(shape, ["--max-num-seqs", str(options.rows), *flags]) as config:
            facts = msgspec.structs.replace(config.facts, tokenizer_dir=str(options.tokenizer))
            config = msgspec.structs.replace(config, facts=facts)
            runner = load_runner(config, lambda text, fraction: None)
        walks = walk_all(config, options.walks)
        streams = time_streams(config, runner, options.rows, options.turns, options.steps)
    except SluiceError as error:
        print(f"bench_grammars: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    for name, times in walks.items():
        print(f"{name:>16}: {json.dumps(msgspec.to_builtins(times))}")
    print(f"{options.rows} rows: {json.dumps(msgspec.to_builtins(streams))}")
    if options.json:
        settings = {"shape": options.shape, "tokenizer": options.tokenizer.name, "flags": flags}
        write_result(options.json, "grammars", {**settings, "walks": walks, "streams": streams})
    return 0


def walk_all(config: Config, num_walks: int) -> dict[str, WalkTimes]:
    """Returns the times of each grammar, and of all of them together as "all"."""
    facts = config.facts
    compiler = GrammarCompiler(facts.tokenizer_dir, facts.vocab_size, facts.eos_token_ids)
    compiler.tokenizer()
    rng = random.Random(0)
    times: dict[str, WalkTimes] = {}
    every = Samples([], [], [])
    for name, text in GRAMMARS.items():
        begin_s = time.perf_counter()
        compiler.compile(text)
        first_ms = (time.perf_counter() - begin_s) * 1e3
        samples = Samples([], [], [])
        for _ in range(num_walks):
            walk(compiler, config, text, rng, samples)
        times[name] = summarize(first_ms, samples)
        for whole, part in zip(every, samples, strict=True):
            whole.extend(part)
    return times | {"all": summarize(sum(each.first_ms for each in times.values()), every)}


def walk(compiler: GrammarCompiler, config: Config, text: str, rng: random.Random, samples: Samples) -> None:
    """Adds the times of one output of random tokens that the grammar allows; it does not end before it must."""
    facts = config.facts
    matcher, tokenizer = compiler.compile(text), compiler.tokenizer()
    grammar = make_grammar(matcher, tokenizer, array("i"), facts.vocab_size, ())
    for _ in range(WALK_TOKENS):
        begin_cpu_ns, begin_s = time.thread_time_ns(), time.perf_counter()
        bitmask = grammar.bitmask()
        middle_s, middle_cpu_ns = time.perf_counter(), time.thread_time_ns()
        bits = np.unpackbits(np.frombuffer(bitmask, np.uint8), bitorder="little")
        token_id = int(rng.choice(np.flatnonzero(bits)))
        accept_s = time.perf_counter()
        ending = grammar.accept(token_id)
        samples.accept_us.append((time.perf_counter() - accept_s) * 1e6)
        samples.bitmask_us.append((middle_s - begin_s) * 1e6)
        samples.bitmask_cpu_us.append((middle_cpu_ns - begin_cpu_ns) / 1e3)
        if ending is not None:
            assert ending.error is None, ending.error
            return


def summarize(first_ms: float, samples: Samples) -> WalkTimes:
    quantiles = [round(float(np.quantile(times, q)), 1) for times in samples for q in (0.5, 0.99)]
    return WalkTimes(round(first_ms, 1), len(samples.bitmask_us), *quantiles)


def time_streams(config: Config, runner: Runner, num_rows: int, num_turns: int, num_steps: int) -> StreamTimes:
    """Lets rows without and with a grammar take turns; the steps in which rows begin are not timed."""
    plain: list[tuple[float, float]] = []
    grammar: list[tuple[float, float]] = []
    for turn in range(num_turns):
        plain.append(time_turn(config, runner, num_rows, num_steps, turn, None))
        grammar.append(time_turn(config, runner, num_rows, num_steps, turn, STREAM_GRAMMAR))
    walls, cpus = ([[pair[index] for pair in turns] for turns in (plain, grammar)] for index in (0, 1))
    return StreamTimes(
        num_rows,
        num_turns,
        *(round(statistics.median(turns), 3) for turns in walls),
        speed=_median_ratio(*walls),
        **dict(zip(("plain_cpu_ms", "grammar_cpu_ms"), (round(statistics.median(t), 3) for t in cpus), strict=True)),
        cpu_speed=_median_ratio(*cpus),
    )


def _median_ratio(plain: list[float], grammar: list[float]) -> float:
    return round(statistics.median(before / after for before, after in zip(plain, grammar, strict=True)), 3)


def time_turn(
    config: Config, runner: Runner, num_rows: int, num_steps: int, turn: int, grammar: str | None
) -> tuple[float, float]:
    """Returns the median times of a decode step in ms: the wall's, and all threads' on the processor."""
    scheduler = make_scheduler(config, runner, GrammarBuilder(config, lambda: None))
    params: dict[str, Any] = {"max_tokens": NEVER, "temperature": 1.0, "ignore_eos": True}
    if grammar is not None:
        params["grammar"] = Grammar("llguidance", grammar, "response_format")
    for uid in range(num_rows):
        prompt = pack_int32([100 + uid, 200 + turn, 300])
        scheduler.receive(UserMsg(uid, 0, prompt, SamplingParams(**params, seed=uid), Stamps()))
    walls: list[float] = []
    cpus: list[float] = []
    while len(walls) < num_steps:
        begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
        batch = scheduler.schedule()
        if batch is None:
            continue  # grammars are being compiled
        scheduler.commit(runner.launch(batch).result())
        scheduler.pop_replies()
        if batch.num_decode_rows == num_rows:
            walls.append((time.perf_counter() - begin_s) * 1e3)
            cpus.append((time.process_time() - begin_cpu_s) * 1e3)
    return statistics.median(walls), statistics.median(cpus)


if __name__ == "__main__":
    raise SystemExit(main())
