"""`launch.py join` with the engine of `benchmarks/paced_scheduler.py`.

python -m benchmarks.experiments.remote_engines_0067.paced_joiner STEP_MS tcp://HOST:PORT --key-file FILE
"""

import sys

from extras.remote import engine, join
from supervisor.python_process import python_command


def main() -> int:
    step_ms, *arguments = sys.argv[1:]
    paced = (*python_command("benchmarks.paced_scheduler"), "--step-ms", step_ms)
    engine.python_command = lambda module: paced
    return join.main(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
