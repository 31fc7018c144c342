"""Starts the scheduler process."""

import runpy
import sys

from scheduler_proc.early import await_command_line
from scheduler_proc.process import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["--early"]:
        runpy.run_module(await_command_line(int(sys.argv[2])), run_name="__main__", alter_sys=True)
    raise SystemExit(main())
