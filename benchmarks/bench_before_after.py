"""What a change costs the processes around the model: the ring's benchmark in two checkouts, in turns.

    python -m benchmarks.bench_before_after --before DIR --rounds 8 --json FILE

DIR is a checkout of the code before, with the same environment. Without it both sides are this one, and differ in
flags: `--before-flags "--black-box-mb 0"`. The turns alternate, and so does which side begins, so that what else runs
on the machine falls on both. Throughput is of streams whose steps take `--step-ms`; CPU time is that of all processes
of the server for each output token, and is the steadier of the two on a busy machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.result_file import ROOT, write_result

SIDES = ("before", "after")
TURN_TIMEOUT_S = 180.0


class Turn(msgspec.Struct, frozen=True):
    """One run of one side."""

    output_tokens_per_s: float
    cpu_us_per_token: dict[str, float]

    @property
    def cpu_us(self) -> float:
        return sum(self.cpu_us_per_token.values())


class Comparison(msgspec.Struct, frozen=True):
    """Medians over all turns, and the median over the rounds of after / before."""

    num_streams: int
    step_ms: float
    seconds: float
    flags: dict[str, str]
    turns: dict[str, list[Turn]]
    tokens_per_s: dict[str, float]
    cpu_us_per_token: dict[str, float]
    tokens_per_s_ratio: float
    cpu_ratio: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 where a turn fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, default=ROOT, metavar="DIR", help="checkout of the code before")
    for side in SIDES:
        parser.add_argument(f"--{side}-flags", default="", help=f"flags of the server {side}, in one word")
    parser.add_argument("--streams", type=int, default=64, help="streams at a time (default: 64)")
    parser.add_argument("--step-ms", type=float, default=1.0, help="time of a step (default: 1)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each turn (default: 6)")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each side (default: 8)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    load = ["--streams", str(options.streams), "--step-ms", str(options.step_ms), "--seconds", str(options.seconds)]
    places = {"before": options.before.resolve(), "after": ROOT}
    turns: dict[str, list[Turn]] = {side: [] for side in SIDES}
    try:
        for number in range(options.rounds):
            for side in SIDES if number % 2 else SIDES[::-1]:
                flags = vars(options)[f"{side}_flags"]
                turns[side].append(run_turn(places[side], [*load, f"--flags={flags}"] if flags else load))
                print(
                    f"{side}: {turns[side][-1].output_tokens_per_s:.0f} tok/s, {turns[side][-1].cpu_us:.1f} us a token"
                )
    except (subprocess.SubprocessError, OSError) as error:
        print(f"bench_before_after: {error}", file=sys.stderr)
        return 1
    flags = {side: vars(options)[f"{side}_flags"] for side in SIDES}
    result = compare(options.streams, options.step_ms, options.seconds, flags, turns)
    print(f"after / before: throughput {result.tokens_per_s_ratio:.4f}, CPU per token {result.cpu_ratio:.4f}")
    if options.json:
        write_result(options.json, "before_after", result)
    return 0


def run_turn(place: Path, load: list[str]) -> Turn:
    """Returns what the checkout at `place` does under one load. Raises `SubprocessError`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "turn.json"
        command = [sys.executable, "-m", "benchmarks.bench_ring_cost", *load, "--json", str(file)]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL, timeout=TURN_TIMEOUT_S)
        (cost,) = json.loads(file.read_text(encoding="utf-8"))["results"]
    return Turn(cost["output_tokens_per_s"], cost["cpu_us_per_token"])


def compare(
    num_streams: int, step_ms: float, seconds: float, flags: dict[str, str], turns: dict[str, list[Turn]]
) -> Comparison:
    """Returns medians; ratios are of turns that ran right after each other."""
    pairs = list(zip(turns["before"], turns["after"], strict=True))
    return Comparison(
        num_streams=num_streams,
        step_ms=step_ms,
        seconds=seconds,
        flags=flags,
        turns=turns,
        tokens_per_s={side: median(turn.output_tokens_per_s for turn in turns[side]) for side in SIDES},
        cpu_us_per_token={side: round(median(turn.cpu_us for turn in turns[side]), 2) for side in SIDES},
        tokens_per_s_ratio=round(
            median(after.output_tokens_per_s / before.output_tokens_per_s for before, after in pairs), 4
        ),
        cpu_ratio=round(median(after.cpu_us / before.cpu_us for before, after in pairs), 4),
    )


if __name__ == "__main__":
    raise SystemExit(main())
