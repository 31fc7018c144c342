"""The gain and cost of `--speculative`: the same requests without it and with each kind, in turns, in one process.

    python -m benchmarks.experiments.speculation_0045.bench_speculative [--model DIR] [--draft-model DIR] [FLAGS]

Prompts are passages of a text that the model was trained on. "repeats" continues them greedily, which small models soon
repeat; "drawn" samples at temperature 0.8; "again" continues prompts that were sent before, greedily; "random" samples
at temperature 1; "json" samples at temperature 1 under a schema whose long names are forced. W1 to W4 are the workloads
of `benchmarks/load/batch_client.py` at temperature 1; "W1 repeats" to "W4 repeats" are greedy, on prompts that repeat a
passage. `draft` needs --draft-model. Numbers are the time without speculation over the time with it, the median of the
rounds: `wall` by the clock, `cpu` by the CPU time of the computing thread, which with `--cpu-threads 1` also holds on a
machine that others use. Repetition differs between prompts, so cases of one request need some tens of rounds.

A table of a pair made for this benchmark (the first command trains for some minutes):

    cd benchmarks/experiments/speculation_0045 && export PYTHONPATH=../../..
    python make_draft_model.py /tmp/draft --slow-model /tmp/slow
    python bench_speculative.py --model /tmp/slow --draft-model /tmp/draft --only repeats drawn again \\
        --rows 1 4 8 32 --output 64 --rounds 2 --cpu-threads 1 --dtype float32 --json FILE
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llguidance import LLMatcher
from tokenizers import Tokenizer

from benchmarks.load.batch_client import WORKLOADS, Workload
from benchmarks.result_file import write_result
from messages.config.server import Config
from messages.errors import SluiceError
from messages.ring.requests import Grammar, SamplingParams
from scheduler_proc.grammar_builder import GrammarBuilder
from scheduler_proc.offline import OfflineEngine
from supervisor.flags import parse_flags
from supervisor.run import build_config

PROMPT_TOKENS = 64
NUM_TIMES = 4
"""How often a prompt that repeats has its passage."""

NAMES = ("delivery_address_line", "customer_identification", "estimated_arrival_date", "preferred_payment_method")
JSON_SCHEMA = {
    "type": "object",
    "properties": {name: {"enum": ["unknown", "confirmed", "cancelled"]} for name in NAMES},
    "required": NAMES,
    "additionalProperties": False,
}

Prompts = Callable[[int], list[list[int]]]
"""Takes a seed."""


@dataclass(frozen=True)
class Case:
    """`rows` requests at a time."""

    name: str
    rows: int
    num_output: int
    temperature: float
    prompts: Prompts
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Turn:
    """One case with one mode in one round."""

    wall_s: float
    cpu_s: float
    outputs: list[list[int]]
    num_steps: float
    num_draft_tokens: float
    num_accepted_tokens: float

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run or outputs differ in float32."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    text = Path("../shared/prompts/tinyshakespeare/input.txt")
    add("--model", default="", help="a checkpoint (default: the bundled model)")
    add("--draft-model", default="", help="a smaller checkpoint with the same tokenizer")
    add("--text", type=Path, default=text, help="what passages are cut from (default: %(default)s)")
    add("--rows", type=int, nargs="+", default=[1, 4, 16, 32], help="default: 1 4 16 32")
    add("--rounds", type=int, default=5, help="default: %(default)s")
    add("--output", type=int, default=512, help="output tokens of text that repeats (default: %(default)s)")
    add("--only", nargs="+", default=[], help="cases whose names begin like this")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    try:
        modes = {"none": [], "ngram": []} | (
            {"draft": ["--draft-model", options.draft_model]} if options.draft_model else {}
        )
        configs = {mode: make_config(options.model, mode, [*more, *flags]) for mode, more in modes.items()}
        engines = {mode: load_engine(config) for mode, config in configs.items()}
    except SluiceError as error:
        print(f"bench_speculative: {error}", file=sys.stderr)
        return 1
    cases = [case for case in all_cases(configs["none"], options) if case.name.startswith(tuple(options.only) or "")]
    lines = [line for case in cases for line in [measure(case, engines, options.rounds)] if show(line)]
    if options.json:
        settings = {name: getattr(options, name) for name in ("model", "draft_model", "text", "rounds", "output")}
        write_result(options.json, "speculative", {**settings, "flags": flags, "cases": lines})
    return int("float32" in flags and not all(gain["same"] for line in lines for gain in line["modes"].values()))


def load_engine(config: Config) -> OfflineEngine:
    return OfflineEngine(config, make_grammars=partial(GrammarBuilder, config))


def make_config(model: str, mode: str, flags: list[str]) -> Config:
    """Returns the server's configuration. Raises `UsageError`, `BootError`."""
    own = ["--model", model, "--device", "cpu", "--kv-cache-memory-gb", "0.5", "--speculative", mode]
    sections: dict[str, Any] = dict(parse_flags([*own, *flags]))
    return build_config(sections)


def all_cases(config: Config, options: argparse.Namespace) -> Iterator[Case]:
    tokenizer = Tokenizer.from_file(str(Path(config.facts.tokenizer_dir) / "tokenizer.json"))
    text_ids = tokenizer.encode(options.text.read_text(encoding="utf-8"), add_special_tokens=False).ids

    def cut(chance: random.Random, num_tokens: int) -> list[int]:
        start = chance.randrange(len(text_ids) - num_tokens)
        return text_ids[start : start + num_tokens]

    def passages(rows: int, same: bool = False) -> Prompts:
        def make(seed: int) -> list[list[int]]:
            chance = random.Random(
                -1 if same else f"{seed} of {rows}"
            )  # no case has another one's prompts in its cache
            return [cut(chance, PROMPT_TOKENS) for _ in range(rows)]

        return make

    def workload(load: Workload, num_times: int) -> Prompts:
        def make(seed: int) -> list[list[int]]:
            chance = random.Random(seed)
            shared, num_own = cut(chance, load.num_shared), load.num_input - load.num_shared
            passage = -(-num_own // num_times)
            return [shared + (cut(chance, passage) * num_times)[:num_own] for _ in range(load.num_requests)]

        return make

    grammar = Grammar("llguidance", LLMatcher.grammar_from_json_schema(JSON_SCHEMA, {"whitespace_flexible": False}), "")
    for rows in options.rows:
        yield Case("repeats", rows, options.output, 0.0, passages(rows))
    for rows in options.rows:
        yield Case("drawn", rows, options.output, 0.8, passages(rows))
    for rows in options.rows:
        yield Case("again", rows, options.output, 0.0, passages(rows, same=True))
    for rows in options.rows:
        yield Case("random", rows, 128, 1.0, passages(rows))
    for rows in options.rows:
        yield Case("json", rows, 256, 1.0, passages(rows), grammar)
    for name, load in WORKLOADS.items():
        yield Case(name, load.concurrency, load.num_output, 1.0, workload(load, 1))
        yield Case(f"{name} repeats", load.concurrency, load.num_output, 0.0, workload(load, NUM_TIMES))


def measure(case: Case, engines: dict[str, OfflineEngine], rounds: int) -> dict[str, Any]:
    """Returns the figures of a case; the first of its rounds, a warm-up, does not count."""
    modes = list(engines)
    turns: dict[str, list[Turn]] = {mode: [] for mode in modes}
    for index in range(rounds + 1):
        for mode in modes if index % 2 else modes[::-1]:
            turn = run(case, engines[mode], index)
            if index:
                turns[mode].append(turn)
    plain = turns["none"]
    return {
        "name": case.name,
        "rows": case.rows,
        "num_output": case.num_output,
        "tok/s": {mode: [turn.num_tokens / turn.wall_s for turn in turns[mode]] for mode in modes},
        "tok/cpu_s": {mode: [turn.num_tokens / turn.cpu_s for turn in turns[mode]] for mode in modes},
        "modes": {mode: compare(plain, turns[mode]) for mode in modes[1:]},
    }


def compare(plain: list[Turn], drafting: list[Turn]) -> dict[str, Any]:
    """Returns what one kind of speculation gains."""
    pairs = list(zip(plain, drafting, strict=True))
    return {
        "wall": statistics.median(off.wall_s / on.wall_s for off, on in pairs),
        "cpu": statistics.median(off.cpu_s / on.cpu_s for off, on in pairs),
        "steps": sum(turn.num_steps for turn in drafting) / sum(turn.num_steps for turn in plain),
        "draft_tokens": sum(turn.num_draft_tokens for turn in drafting),
        "accepted_tokens": sum(turn.num_accepted_tokens for turn in drafting),
        "tokens_a_step": sum(turn.num_tokens / turn.num_steps for turn in drafting) / len(drafting),
        "same": all(off.outputs == on.outputs for off, on in pairs),
    }


def run(case: Case, engine: OfflineEngine, seed: int) -> Turn:
    """Runs the case's requests, `rows` at a time."""
    prompts = case.prompts(seed)
    before = dict(engine.gauges)
    outputs: list[list[int]] = []
    begin_s, begin_cpu_s = time.perf_counter(), time.thread_time()
    for first in range(0, len(prompts), case.rows):
        some = prompts[first : first + case.rows]
        params = [
            SamplingParams(
                case.num_output,
                temperature=case.temperature,
                seed=seed + first + row,
                ignore_eos=case.grammar is None,
                grammar=case.grammar,
            )
            for row in range(len(some))
        ]
        outputs += [output.token_ids for output in engine.generate(some, params)]
    wall_s, cpu_s = time.perf_counter() - begin_s, time.thread_time() - begin_cpu_s
    names = ("steps", "draft_tokens", "accepted_tokens")
    return Turn(wall_s, cpu_s, outputs, *(engine.gauges[name] - before.get(name, 0.0) for name in names))


def show(line: dict[str, Any]) -> bool:
    tokens = {mode: statistics.median(values) for mode, values in line["tok/s"].items()}
    for mode, gain in line["modes"].items():
        print(
            f"{line['name']:10} {line['rows']:3} rows  {mode:5}  {tokens['none']:7,.0f} -> {tokens[mode]:7,.0f} tok/s  "
            f"x{gain['wall']:.2f} wall  x{gain['cpu']:.2f} cpu  steps x{gain['steps']:.2f}, "
            f"{gain['tokens_a_step']:.1f} tokens each  "
            f"accepted {gain['accepted_tokens']:.0f} of {gain['draft_tokens']:.0f}  same {gain['same']}",
            flush=True,
        )
    return True


if __name__ == "__main__":
    raise SystemExit(main())
