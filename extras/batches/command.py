"""`launch.py batch IN OUT`: a server that answers the requests of a file and ends; here is how far it is.

Exit codes: 0 every line has a result, 1 some have none or the server failed (run it again to continue), 2 the input
cannot be read, 130 interrupted.
"""

import argparse
import datetime
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from messages.program import PROGRAM
from supervisor.programs import start_launcher

DONE, LEFT, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
POLL_S = 0.5
LOG_BYTES = 65536
REPORT_S = 10.0
"""Interval of progress lines, if there is no terminal."""

EPILOG = """
IN has a request in each line, as OpenAI's batch files: {"custom_id": …, "method": "POST", "url":
"/v1/chat/completions", "body": {…}}. OUT gets a line for each, in the order in which they are answered. What OUT has
already is not asked again. The flags that follow are those of the server:

    launch.py batch requests.jsonl results.jsonl --model DIR
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.set_defaults(execute=run_batch)


class ResultCount:
    """The lines of a file that grows, and that a crash may have cut."""

    def __init__(self, path: Path):
        self._path = path
        self._num_bytes = 0
        self._num_lines = 0

    def look(self) -> int:
        """Returns how many whole lines there are now."""
        if not self._path.exists():
            return 0
        with self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._num_bytes:
                self._num_bytes = self._num_lines = 0
            file.seek(self._num_bytes)
            while chunk := file.read(2**20):
                self._num_bytes += len(chunk)
                self._num_lines += chunk.count(b"\n")
        return self._num_lines


class Progress:
    """Shows progress: a bar on a terminal, otherwise a line at most every `REPORT_S`."""

    def __init__(self, num_lines: int, num_done: int):
        is_terminal = sys.stderr.isatty()
        has_size = is_terminal and os.get_terminal_size(sys.stderr.fileno()).columns > 0
        # Some terminals (in containers and scripts) report 0 columns, and tqdm would show nothing.
        size: dict[str, Any] = {} if has_size else {"ncols": 80, "nrows": 24}
        self.bar = tqdm(total=num_lines, initial=num_done, unit="line", disable=not is_terminal, miniters=1, **size)
        self._num_lines, self._num_first, self._begin_s = num_lines, num_done, time.monotonic()
        self._num_reported, self._reported_s = num_done, self._begin_s

    def show(self, num_done: int, *, is_end: bool = False) -> None:
        """Shows the number of lines with a result; call it often."""
        self.bar.update(num_done - self.bar.n)
        self.bar.refresh()
        is_due = is_end or time.monotonic() - self._reported_s >= REPORT_S
        if self.bar.disable and is_due and num_done != self._num_reported:
            self._report(num_done)

    def _report(self, num_done: int) -> None:
        self._num_reported, self._reported_s = num_done, time.monotonic()
        num_new, num_left = num_done - self._num_first, self._num_lines - num_done
        text = f"{num_done} of {self._num_lines} lines have a result"
        if num_new > 0 and num_left > 0:
            left_s = (self._reported_s - self._begin_s) / num_new * num_left
            text += f", about {datetime.timedelta(seconds=round(left_s))} left"
        print(text, file=sys.stderr, flush=True)


def run_batch(options: argparse.Namespace) -> int:
    """Runs the server and returns the exit code."""
    path, output = options.input, options.output
    try:
        with path.open("rb") as file:
            num_lines = sum(bool(line.strip()) for line in file)
        results = ResultCount(output)
        results.look()
    except OSError as error:
        print(f"{PROGRAM} batch: {error}", file=sys.stderr)
        return UNUSABLE
    if num_lines and results.look() >= num_lines:
        print(f"{output} has a result of each of the {num_lines} lines", file=sys.stderr)
        return DONE
    exit_code = _serve(path, output, options.server_flags, num_lines, results)
    num_left = num_lines - results.look()
    if num_left > 0:
        print(f"{num_left} of {num_lines} lines have no result; run it again to continue", file=sys.stderr)
    return exit_code or (LEFT if num_left > 0 else DONE)


def _serve(path: Path, output: Path, flags: Sequence[str], num_lines: int, results: ResultCount) -> int:
    """Shows the server's messages and progress until it ends; returns its exit code.

    The server has no standby, as a restart delays a batch only a little.
    """
    arguments = ("--port", "0", "--no-standby", *flags, "--batch-run", str(path), str(output))
    progress = Progress(num_lines, results.look())
    server = start_launcher(arguments, stderr=subprocess.PIPE)
    assert server.stderr is not None
    log, exit_code = server.stderr.fileno(), 0
    with server, progress.bar:
        while True:
            try:
                readable, _, _ = select.select([log], [], [], POLL_S)
                text = os.read(log, LOG_BYTES) if readable else None
                if text:
                    tqdm.write(text.decode(errors="replace"), file=sys.stderr, end="")
                progress.show(results.look(), is_end=text == b"")
                if text == b"":
                    return exit_code or min(1, abs(server.wait()))
            except KeyboardInterrupt:
                exit_code = INTERRUPTED
                server.terminate()
