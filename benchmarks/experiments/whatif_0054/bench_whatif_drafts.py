"""Predictions of `launch.py whatif` for servers with lookup of draft tokens, compared with what clients measure.

    python -m benchmarks.experiments.whatif_0054.bench_whatif_drafts [--text FILE] [--json FILE] [FLAGS]

A server is recorded while it serves a load of random prompts and then one of passages that repeat, continued greedily.
The second load is predicted for other settings, with lookup and as if there were none, and servers with these settings
serve it unrecorded. Time is wall time, so nothing else should run.
"""

import argparse
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from tokenizers import Tokenizer

from benchmarks.experiments.whatif_0054.bench_whatif import compare, show
from benchmarks.experiments.whatif_0054.bench_whatif_http import RecordedServer, measure
from benchmarks.result_file import write_result
from extras.whatif.cost_model import fit
from extras.whatif.outcome import simulate
from extras.whatif.self_check import find_errors
from extras.whatif.settings import Setting
from extras.whatif.traces import Arrival
from supervisor.flags import parse_flags
from supervisor.run import build_config

NUM_PAGES = 400
RECORDED = ["--max-num-seqs", "16", "--num-pages", str(NUM_PAGES), "--max-num-batched-tokens", "512"]
SETTINGS = [Setting(16, NUM_PAGES, 512), Setting(2, NUM_PAGES, 512)]
PASSAGE_TOKENS, NUM_OUTPUT = 48, 128
FACTS = ("output_tokens_per_s", "requests_per_s")


def main(arguments: list[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--text", type=Path, default=Path("../shared/prompts/tinyshakespeare/input.txt"), help="default: %(default)s")
    add("--num-requests", type=int, default=40, help="default: %(default)s")
    add("--rate", type=float, default=2.0, help="requests a second (default: %(default)g)")
    add("--seconds", type=float, default=10.0, help="duration of the random load (default: %(default)g)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    flags = ["--device", "cpu", "--log-level", "warning", *flags]
    config = build_config(dict(parse_flags([*RECORDED, *flags])))
    tokenizer = Tokenizer.from_file(str(Path(config.facts.tokenizer_dir) / "tokenizer.json"))
    load = make_load(tokenizer.encode(options.text.read_text(encoding="utf-8")).ids, options.num_requests, options.rate)
    with RecordedServer(config, [*flags, *RECORDED]) as server:
        server.serve_load(options.seconds)
        server.serve_arrivals(load)
        recording = server.read_last_loads()
    found, model, arrivals = recording.calibration, fit(recording.calibration.steps), recording.arrivals[-len(load) :]
    ways = {"with lookup": found, "as if without": msgspec.structs.replace(found, num_speculative_tokens=0)}
    lines: list[dict[str, Any]] = []
    for setting in SETTINGS:
        measured = measure([load], config, flags, setting)
        for way, calibration in ways.items():
            lines.append(compare((way, setting), [simulate(arrivals, calibration, model, setting)], measured, FACTS))
            show(lines[-1])
            print(f"  {lines[-1]['output_tokens_per_s']}")
    if options.json:
        errors = find_errors(recording, model, len(recording.arrivals))
        write_result(options.json, "whatif_drafts", {"flags": flags, "self_errors": errors, "cases": lines})
    return 0


def make_load(text_ids: list[int], num_requests: int, rate: float) -> list[Arrival]:
    """Returns requests with a passage four times, which a small model continues with a fifth."""
    chance, at_s = Random(5), 0.0
    load: list[Arrival] = []
    for _ in range(num_requests):
        start = chance.randrange(len(text_ids) - PASSAGE_TOKENS)
        load.append(Arrival(4 * text_ids[start : start + PASSAGE_TOKENS], NUM_OUTPUT, at_s))
        at_s += chance.expovariate(rate)
    return load


if __name__ == "__main__":
    raise SystemExit(main())
