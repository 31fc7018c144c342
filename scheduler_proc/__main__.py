"""Starts the scheduler process."""

import sys

from scheduler_proc.early import await_command_line
from scheduler_proc.process import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["--early"]:
        await_command_line(int(sys.argv[2]))
    raise SystemExit(main())
