"""Starts the scheduler process."""

import runpy
import sys

from scheduler_proc.early import await_command_line
from scheduler_proc.process import main

if __name__ == "__main__":
    if sys.argv[1:2] == ["--early"]:
        module = await_command_line(int(sys.argv[2]), is_spare="--spare" in sys.argv)
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    raise SystemExit(main())
