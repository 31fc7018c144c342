"""`launch.py join`: runs an engine of a server whose head is on another machine (decision 0067)."""

import argparse
import os
import tempfile
import time
from pathlib import Path

from extras.remote.engine import Engine
from extras.remote.join_keys import JoinKeys, check_address, read_keys
from extras.remote.machine import check_processors, make_config
from extras.remote.model_fetch import ModelFetch
from extras.remote.session import EngineEndedError, NoHeadError, RefusedError, Session, StopSignalError
from messages.errors import BootError, UsageError, errors_as
from messages.program import PROGRAM
from runtime.lifeline import ask_for_death_signal, clear_run, make_lifeline
from runtime.run_dir import RunDir, claim, default_path
from supervisor.console import Console
from supervisor.memory_files import MemoryFiles
from supervisor.programs import program_parser
from supervisor.signals import SignalPipe

REJOIN_S = 10.0
"""The time limit to find the head after it has stopped the engine: it is being replaced, or the run is over."""

RETRY_INTERVAL_S = 0.5

MAX_REFUSALS = 3
"""In a row; then the key is wrong."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = program_parser("join", "Runs an engine of a server whose head is on another machine.")
    parser.add_argument("address", metavar="tcp://HOST:PORT", help="an address of the head's --remote-engines")
    parser.add_argument("--key-file", type=Path, required=True, metavar="FILE", help="a copy of the head's join.key")
    parser.add_argument(
        "--model",
        default="",
        metavar="DIR",
        help="path of the model on this machine (default: the head's path or name, else files from the head)",
    )
    parser.add_argument("--device", default="", metavar="cuda:N", help="GPU to use (default: the first one)")
    parser.add_argument(
        "--cpu-threads", type=int, default=0, metavar="N", help="CPU threads (default: number of cores)"
    )
    parser.add_argument(
        "--retry-s",
        type=float,
        default=60.0,
        metavar="X",
        help="seconds to keep trying to reach the head (default: 60)",
    )
    parser.add_argument("--once", action="store_true", help="exit when the engine ends instead of joining again")
    parser.add_argument("--parent-pid", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs engines until the head has ended or a stop signal comes; returns the exit code."""
    options = parse(arguments)
    console = Console()
    try:
        check_address("the address", options.address)
        check_processors(options.device, options.cpu_threads)
        keys = read_keys(options.key_file, JoinKeys)
        with SignalPipe() as signals:
            if options.parent_pid:
                ask_for_death_signal(options.parent_pid)
            run_dir, lock = claim_new()
            lifeline = make_lifeline(run_dir)
            try:
                Joiner(options, keys, run_dir, signals, console).run()
            finally:
                run_dir.remove()
                os.close(lifeline)
                os.close(lock)
    except StopSignalError:
        return 0
    except (UsageError, BootError) as error:
        console.show(f"{PROGRAM} join: {error}", "error")
        return 2 if isinstance(error, UsageError) else 1
    finally:
        console.close()
    return 0


def claim_new() -> tuple[RunDir, int]:
    """Claims a run directory with a new name, after removing those of killed joiners, with their engines."""
    prefix = default_path(f"join-{os.getpid()}-")
    for left_over in prefix.parent.glob(default_path("join-*").name):
        clear_run(RunDir(left_over))
    with errors_as(BootError, f"no run directory can be created in {prefix.parent}"):
        path = tempfile.mkdtemp(prefix=prefix.name, dir=prefix.parent)
    return claim(Path(path))


class Joiner:
    """Joins the head repeatedly, with one engine at a time."""

    def __init__(
        self, options: argparse.Namespace, keys: JoinKeys, run_dir: RunDir, signals: SignalPipe, console: Console
    ):
        self._options = options
        self._keys = keys
        self._run_dir = run_dir
        self._signals = signals
        self._console = console
        self._memory_files = MemoryFiles(run_dir)
        self._has_joined = False
        """In the latest try."""
        self._num_refusals = 0

    def run(self) -> None:
        """Returns when the head has ended. Raises `StopSignalError`, and `BootError` for a permanent error."""
        patience_s, is_end_expected = self._options.retry_s, False
        deadline_s = time.monotonic() + patience_s
        while True:
            try:
                self._serve_once()
            except EngineEndedError as end:
                if self._options.once:
                    self._console.show(str(end))
                    return
                self._console.show(f"{end}; joining again")
                is_end_expected, deadline_s = True, time.monotonic() + min(REJOIN_S, patience_s)
            except NoHeadError as error:
                self._num_refusals = self._num_refusals + 1 if isinstance(error, RefusedError) else 0
                if self._num_refusals == MAX_REFUSALS:
                    raise BootError(str(error)) from None
                if self._has_joined and self._options.once:
                    raise BootError(str(error)) from None
                if self._has_joined:
                    self._console.show(f"{error}; looking for the head for {patience_s:g} s", "error")
                    is_end_expected, deadline_s = False, time.monotonic() + patience_s
                elif time.monotonic() >= deadline_s:
                    if is_end_expected:
                        self._console.show("the head has ended")
                        return
                    raise BootError(f"{self._options.address}: {error}") from None
            time.sleep(RETRY_INTERVAL_S)

    def _serve_once(self) -> None:
        self._has_joined = False
        with Session(self._options.address, self._keys, self._signals) as session:
            admitted = session.join()
            self._has_joined, self._num_refusals = True, 0
            self._console.show(f"joined {self._options.address} as {admitted.name}; its log is shown at the head")
            config = make_config(admitted, self._options, self._console, ModelFetch(session, self._console))
            self._memory_files.provide(admitted.name)
            clock_ahead_ns = session.compare_clocks()
            try:
                engine = Engine(admitted, config, self._run_dir, clock_ahead_ns)
            except OSError as error:
                raise BootError(f"{admitted.name} cannot be started: {error}") from None
            session.serve(engine)


if __name__ == "__main__":
    raise SystemExit(main())
