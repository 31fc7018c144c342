"""What the black box and `--record` cost a server: its throughput and CPU time with and without them, in turns.

    python -m benchmarks.bench_recording --rounds 6 --json FILE

Each turn is a server of its own, whose steps take `--step-ms` and compute nothing (`bench_ring_cost`), so that as much
of its time as can be goes to messages. The order of the sides changes from round to round, and a ratio is of two turns
of one round, so that what else runs on the machine falls on all. Files lie on the disk of the temporary directory, as
run directories do.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.bench_before_after import Turn, run_turn
from benchmarks.result_file import ROOT, write_result

OFF = "off"
FLAGS = {
    OFF: "--black-box-mb 0",
    "black box": "",
    "record": "--black-box-mb 0 --record {folder}/recording",
    "both": "--record {folder}/recording",
}
"""Of the server, by side; `folder` is empty."""


class Side(msgspec.Struct, frozen=True):
    """Medians over the rounds; ratios are to the side `off` in the same round."""

    turns: list[Turn]
    tokens_per_s: float
    cpu_us_per_token: float
    tokens_per_s_ratio: float
    cpu_ratio: float


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 where a turn fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64, help="streams at a time (default: 64)")
    parser.add_argument("--step-ms", type=float, default=2.0, help="time of a step (default: 2)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each turn (default: 5)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each side (default: 6)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("streams", "step_ms", "seconds")}
    load = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    turns: dict[str, list[Turn]] = {side: [] for side in FLAGS}
    try:
        for number in range(options.rounds):
            for side in rotated(list(FLAGS), number):
                with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
                    turn = run_turn(ROOT, [*load, f"--flags={FLAGS[side].format(folder=folder)}"])
                turns[side].append(turn)
                print(f"{side:10} {turn.output_tokens_per_s:8.0f} tok/s {turn.cpu_us:7.1f} us a token", flush=True)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"bench_recording: {error}", file=sys.stderr)
        return 1
    sides = compare(turns)
    for name, side in sides.items():
        print(f"{name:10} throughput {side.tokens_per_s_ratio:.3f}, CPU time {side.cpu_ratio:.3f} times that of {OFF}")
    if options.json:
        write_result(options.json, "recording", {**settings, "flags": FLAGS, "sides": sides})
    return 0


def rotated(names: list[str], number: int) -> list[str]:
    """Returns the names, beginning with another one in each round, and backwards in every second one."""
    begin = number % len(names)
    names = names[begin:] + names[:begin]
    return names[::-1] if number % 2 else names


def compare(turns: dict[str, list[Turn]]) -> dict[str, Side]:
    """Returns the figures of each side; all have as many turns."""

    def side(own: list[Turn]) -> Side:
        pairs = list(zip(own, turns[OFF], strict=True))
        return Side(
            turns=own,
            tokens_per_s=median(turn.output_tokens_per_s for turn in own),
            cpu_us_per_token=round(median(turn.cpu_us for turn in own), 2),
            tokens_per_s_ratio=round(
                median(one.output_tokens_per_s / off.output_tokens_per_s for one, off in pairs), 4
            ),
            cpu_ratio=round(median(one.cpu_us / off.cpu_us for one, off in pairs), 4),
        )

    return {name: side(own) for name, own in turns.items()}


if __name__ == "__main__":
    raise SystemExit(main())
