"""Runs the frontend by itself: `python -m frontend --run-dir DIR`."""

from frontend.process import main

if __name__ == "__main__":
    raise SystemExit(main())
