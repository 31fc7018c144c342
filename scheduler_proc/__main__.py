"""Starts the scheduler process."""

from scheduler_proc.process import main

if __name__ == "__main__":
    raise SystemExit(main())
