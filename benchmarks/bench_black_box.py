"""What it costs a process to keep a frame: processor time of one copy into the black box, by the frame's size.

    python -m benchmarks.bench_black_box --json FILE

The file is on the disk of the temporary directory; `--folder /dev/shm` shows what a tmpfs saves.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import msgspec

from benchmarks.result_file import write_result
from messages.frame_files import IS_SENT
from runtime.black_box.frame_writer import FrameWriter

CAPACITY = 8 << 20
SIZES = (200, 2_000, 20_000)
"""Bytes: the tokens of a step of one row, of about a hundred, and a prompt of some thousand tokens."""

NUM_FRAMES = 20_000
NUM_ROUNDS = 9


class FrameCost(msgspec.Struct, frozen=True):
    """Of a frame of `num_bytes`, over rounds of many frames."""

    num_bytes: int
    median_cpu_us: float
    least_cpu_us: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the file is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args()
    costs = [measure(size, options.folder) for size in SIZES]
    for cost in costs:
        print(f"{cost.num_bytes:6} bytes: {cost.median_cpu_us:.2f} us, least {cost.least_cpu_us:.2f} us")
    if options.json:
        write_result(options.json, "black_box", costs)
    return 0


def measure(num_bytes: int, folder: Path) -> FrameCost:
    """Returns the cost of a frame once the ring has come round."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        writer = FrameWriter(Path(directory) / "bench.frames", "bench", CAPACITY)
        frame = os.urandom(num_bytes)
        rounds: list[float] = []
        for _ in range(NUM_ROUNDS + 1):
            begin_s = time.process_time()
            for _ in range(NUM_FRAMES):
                writer.add(IS_SENT, b"detokenizer", frame)
            rounds.append(1e6 * (time.process_time() - begin_s) / NUM_FRAMES)
    return FrameCost(num_bytes, round(median(rounds[1:]), 2), round(min(rounds[1:]), 2))


if __name__ == "__main__":
    raise SystemExit(main())
