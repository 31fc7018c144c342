"""Stands in for a part of `make bench-gpu`: `python -m tests.benchmarks.fake_part BEHAVIOUR --json FILE`."""

import argparse
import os
import signal
import time
from pathlib import Path

from benchmarks.result_file import write_result


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("behaviour")
    parser.add_argument("--device")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.behaviour == "fail":
        raise ValueError("it cannot be done")
    if options.behaviour == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if options.behaviour == "forget":
        return 0
    write_result(options.json, "fake", {"rows": [1]})
    if options.behaviour == "hang":
        print("hanging", flush=True)
        time.sleep(600)
    write_result(options.json, "fake", {"rows": [1, 2]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
