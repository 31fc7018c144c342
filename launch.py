"""The command that people type: `python launch.py [--model DIR] [flags]` runs the server and returns its exit code."""

import sys

from supervisor.run import launch


def main() -> int:
    return launch(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
