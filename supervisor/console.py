"""The operator's output: one line per event, a progress bar on a terminal, and never a wait for a slow reader."""

import os
import select
import time
from collections import deque
from collections.abc import Iterable

from runtime.logs import LogLine, is_json_line, json_line, shown_time
from runtime.terminal import without_controls

MAX_HELD_LINES = 1000
"""Lines kept while the terminal does not read (stopped, or a stuck pipe); older ones are dropped and counted."""

CHUNK_BYTES = 4096
"""The number of bytes that a pipe accepts without blocking once it polls writable (PIPE_BUF)."""

CLOSE_TIMEOUT_S = 1.0
NAME_WIDTH = 12
BAR_WIDTH = 30
PLAIN_PROGRESS_STEP = 25
"""Percent between two lines of progress without a terminal to draw a bar on."""


class Console:
    """Writes to `descriptor` (standard error) and holds lines back, within bounds, while it does not take them."""

    def __init__(self, descriptor: int = 2):
        self._descriptor = descriptor
        self._is_terminal = os.isatty(descriptor)
        self._held: deque[bytes] = deque()
        self._num_dropped = 0
        self._bar = ""
        self._shown_percents: dict[tuple[str, str], int] = {}
        self.is_json = False
        """Each line is an object, as processes write them, and there is no progress."""

    def show(self, text: str, level: str = "info") -> None:
        """Shows `text`, one line or several; JSON lines have the level."""
        self._write(self._line(text, level))

    def show_of(self, name: str, text: str, level: str = "info") -> None:
        """Shows a line about process `name`."""
        self.show(f"{name:<{NAME_WIDTH}} {text}" if not self.is_json else f"{name}: {text}", level)

    def relay(self, name: str, pid: int, lines: Iterable[str]) -> None:
        """Shows lines that process `name` has written."""
        for line in lines:
            if not self.is_json:
                self.show_of(name, line)
            elif is_json_line(line):
                self._write(f"{line}\n")
            else:
                self._write(_make_json("info", name, pid, "stderr", line))

    def progress(self, name: str, phase: str, fraction: float) -> None:
        """Shows the progress of `phase` of process `name`; `fraction` in [0, 1]."""
        if self.is_json:
            return
        percent = int(100 * min(1.0, max(0.0, fraction)))
        if not self._is_terminal:
            last = self._shown_percents.get((name, phase), 0)
            if percent - last >= PLAIN_PROGRESS_STEP:
                self._shown_percents[name, phase] = percent - percent % PLAIN_PROGRESS_STEP
                self.show_of(name, f"{phase} {percent} %")
            return
        filled = BAR_WIDTH * percent // 100
        bar = f"{name:<{NAME_WIDTH}} {phase} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {percent} %"
        self._bar = "" if percent == 100 else bar
        self._write(f"\r\x1b[K{self._bar}")

    def begin_process(self, name: str) -> None:
        """Clears the progress of a new incarnation of process `name` shown from its beginning."""
        self._shown_percents = {key: percent for key, percent in self._shown_percents.items() if key[0] != name}

    def end_progress(self) -> None:
        """Removes the bar."""
        if self._bar:
            self._bar = ""
            self._write("\r\x1b[K")

    def flush(self) -> None:
        """Writes held-back output as far as possible without waiting."""
        while self._held and self._is_writable(0):
            chunk = self._held.popleft()
            try:
                num_written = os.write(self._descriptor, chunk[:CHUNK_BYTES])
            except BlockingIOError:
                num_written = 0
            except OSError:  # the reader is gone for good: no reader is left
                self._held.clear()
                return
            if num_written < len(chunk):
                self._held.appendleft(chunk[num_written:])
            if num_written == 0:
                return

    def close(self) -> None:
        """Writes held-back output, for at most a second."""
        self.end_progress()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self._held and time.monotonic() < deadline:
            self._is_writable(deadline - time.monotonic())
            self.flush()

    def _line(self, text: str, level: str) -> str:
        if self.is_json:
            return _make_json(level, "launcher", os.getpid(), "sluice.launcher", text.strip())
        erase, redraw = ("\r\x1b[K", self._bar) if self._bar else ("", "")
        return f"{erase}{without_controls(text)}\n{redraw}"

    def _write(self, text: str) -> None:
        if len(self._held) >= MAX_HELD_LINES:
            self._held.popleft()
            self._num_dropped += 1
        elif self._num_dropped and not self._held:
            text = self._line(f"({self._num_dropped} lines were dropped: they were not read)", "warning") + text
            self._num_dropped = 0
        self._held.append(text.encode(errors="replace"))
        self.flush()

    def _is_writable(self, timeout_s: float) -> bool:
        _, writable, _ = select.select([], [self._descriptor], [], max(0.0, timeout_s))
        return bool(writable)


def _make_json(level: str, process: str, pid: int, logger: str, message: str) -> str:
    line = LogLine(time=shown_time(time.time()), level=level, process=process, pid=pid, logger=logger, message=message)
    return f"{json_line(line)}\n"
