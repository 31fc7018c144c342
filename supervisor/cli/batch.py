"""`launch.py batch IN OUT`: a server that answers the requests of a file and ends; here is how far it is.

Exit codes: 0 every line has a result, 1 some have none or the server failed (run it again to go on), 2 the input
cannot be read, 130 interrupted.
"""

import argparse
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from runtime.lifeline import ask_for_death_signal
from supervisor.python_process import ROOT

DONE, LEFT, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
POLL_S = 0.5
LOG_BYTES = 65536

EPILOG = """
IN has a request in each line, as OpenAI's batch files: {"custom_id": …, "method": "POST", "url":
"/v1/chat/completions", "body": {…}}. OUT gets a line for each, in the order in which they are answered. What OUT has
already is not asked again. The flags that follow are those of the server:

    launch.py batch requests.jsonl results.jsonl --model DIR
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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


def run_batch(options: argparse.Namespace) -> int:
    """Runs the server and returns the exit code."""
    path, output = options.input, options.output
    try:
        with path.open("rb") as file:
            num_lines = sum(bool(line.strip()) for line in file)
        results = ResultCount(output)
        results.look()
    except OSError as error:
        print(f"launch.py batch: {error}", file=sys.stderr)
        return UNUSABLE
    if num_lines and results.look() >= num_lines:
        print(f"{output} has a result of each of the {num_lines} lines", file=sys.stderr)
        return DONE
    exit_code = _serve(path, output, options.server_flags, num_lines, results)
    num_left = num_lines - results.look()
    if num_left > 0:
        print(f"{num_left} of {num_lines} lines have no result; run it again to go on", file=sys.stderr)
    return exit_code or (LEFT if num_left > 0 else DONE)


def _serve(path: Path, output: Path, flags: Sequence[str], num_lines: int, results: ResultCount) -> int:
    """Shows what the server says, below it a bar on a terminal, until it has ended; returns its exit code."""
    own_pid = os.getpid()
    server = subprocess.Popen(
        [sys.executable, str(ROOT / "launch.py"), "--port", "0", *flags, "--batch-run", str(path), str(output)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,
        preexec_fn=lambda: ask_for_death_signal(own_pid),  # noqa: PLW1509 (one prctl call)
    )
    assert server.stderr is not None
    log, exit_code = server.stderr.fileno(), 0
    with server, tqdm(total=num_lines, initial=results.look(), unit="line", disable=None) as bar:
        while True:
            try:
                readable, _, _ = select.select([log], [], [], POLL_S)
                text = os.read(log, LOG_BYTES) if readable else None
                if text:
                    tqdm.write(text.decode(errors="replace"), file=sys.stderr, end="")
                bar.update(results.look() - bar.n)
                if text == b"":
                    return exit_code or min(1, abs(server.wait()))
            except KeyboardInterrupt:
                exit_code = INTERRUPTED
                server.terminate()
