"""The server of one model, as the host sees it: its files, its launcher's process, and how that ended."""

import os
import re
import select
import signal
import time
from contextlib import suppress

import msgspec

from extras.models.config import ModelEntry
from extras.models.description import read_description, read_stamp
from extras.models.messages import Description, ModelReport
from messages.config.server import Config
from messages.errors import SluiceError
from runtime.forked_process import fork
from runtime.lifeline import has_launcher, leave_abandoned_run, watch_lifeline
from runtime.logs import is_json_line
from runtime.run_dir import RunDir, other_processes
from supervisor.child import how_it_ended
from supervisor.console import Console
from supervisor.model.gguf.cache import hold_directories
from supervisor.output_lines import OutputLines
from supervisor.run import FAILURE_EXIT_CODE, serve, server_commands

KILL_MARGIN_S = 10.0
"""Beyond the model's own `--drain-timeout-s`, how long its server may take to end."""


class ModelServer:
    """A model of the host. `report` is what the router receives."""

    def __init__(self, entry: ModelEntry, run_dir: RunDir, name: str):
        self.entry = entry
        self._top = run_dir
        self.run_dir = RunDir(run_dir.path / "models" / name)
        self.directory = run_dir.path / "described" / name
        """The directory of the files that outlive one of its servers."""
        self.report = ModelReport(entry.name, run_dir=str(self.run_dir.path))
        self.descriptors: list[int] = []
        """Its process and its output, while it runs."""
        self._output: OutputLines | None = None
        self._kill_at_s = float("inf")
        self._is_child = False
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.run_dir.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.record_description(read_description(self.directory))

    def _set(self, **changes: object) -> None:
        self.report = msgspec.structs.replace(self.report, **changes)

    def record_description(self, description: Description | None) -> None:
        self._set(description=description)
        if description is not None and description.config_file:
            hold_directories(self._config().facts)

    @property
    def is_outdated(self) -> bool:
        """True for a model whose files have changed since they were described, and that has no server."""
        description = self.report.description
        if self.report.process != "none" or description is None or not description.config_file:
            return False
        return description.stamp != read_stamp(self.entry)

    def find_running(self) -> None:
        """Takes over the server that an earlier host has started, if it still runs."""
        with suppress(OSError):
            for pid in other_processes(RunDir(self.directory)):
                self._follow(pid)

    def start(self) -> None:
        """Starts the model's server; no-op if it runs, ends just now, or cannot be served."""
        description = self.report.description
        if self.report.process != "none" or description is None or not description.config_file:
            return
        (self.directory / "error").unlink(missing_ok=True)
        output = self.directory / "output"
        if not output.exists():
            os.mkfifo(output, 0o600)
        writer = os.open(output, os.O_RDWR | os.O_CLOEXEC)
        try:
            title = f"sluice {self.entry.name} --run-dir {self.run_dir.path}"
            pid = fork(self._run, title, (0, writer, writer))
        except OSError as error:
            self._set(error=f"its server cannot be started: {error}")
            return
        finally:
            os.close(writer)
        self._is_child = True
        self._follow(pid)

    def _follow(self, pid: int) -> None:
        output = os.open(self.directory / "output", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self.descriptors, self._output = [os.pidfd_open(pid), output], OutputLines(output)
        self._set(process="running", pid=pid, url=f"unix:{self.run_dir.http_socket}", error="")

    def stop(self, timeout_s: float | None = None) -> None:
        """Makes the model's server finish its requests and end, for at most `timeout_s` (default: its own limit)."""
        if self.report.process == "none":
            return
        limit_s = self._config().run.drain_timeout_s + KILL_MARGIN_S if timeout_s is None else timeout_s
        self._kill_at_s = min(self._kill_at_s, time.monotonic() + limit_s)
        if self.report.process == "running":
            self._set(process="stopping")
            self._send_signal(signal.SIGTERM)

    def _send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptors[0], number)

    def look(self, console: Console) -> None:
        """Shows what its server has written, and notices its end."""
        if self._output is None:
            return
        has_ended = bool(select.select(self.descriptors[:1], [], [], 0)[0])
        while not self._output.has_ended and (texts := self._output.read()) is not None:
            if console.is_json:
                texts = [_with_model(text, self.entry.name) if is_json_line(text) else text for text in texts]
            console.relay(self.entry.name, self.report.pid, texts)
        if has_ended:
            self._record_end(console)
        elif time.monotonic() >= self._kill_at_s:
            self._kill_at_s = float("inf")
            self._send_signal(signal.SIGKILL)

    def due_in_s(self) -> float:
        """Seconds until the next look is due, even if none of `descriptors` is readable."""
        return max(0.0, self._kill_at_s - time.monotonic())

    def _record_end(self, console: Console) -> None:
        code, ending = None, "has ended"
        if self._is_child:
            code = os.waitstatus_to_exitcode(os.waitpid(self.report.pid, 0)[1])
            ending = how_it_ended(code)
        error = "" if self.report.process == "stopping" or code == 0 else f"its server {ending}"
        console.show_of(self.entry.name, error or "unloaded", "warning" if error else "info")
        with suppress(OSError):
            error = error and ((self.directory / "error").read_text(encoding="utf-8") or error)
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors, self._output, self._is_child, self._kill_at_s = [], None, False, float("inf")
        self._set(process="none", pid=0, url="", error=error)

    def _config(self) -> Config:
        return RunDir(self.directory).read_config()

    def _run(self) -> int:
        """Runs the model's launcher, in a process of its own, and returns the exit code."""
        began_s = time.monotonic()
        config = self._config()
        run = msgspec.structs.replace(config.run, run_dir=str(self.run_dir.path))
        http = msgspec.structs.replace(config.http, port=0, is_private=True)
        config = msgspec.structs.replace(config, run=run, http=http)
        console = _LauncherConsole()
        console.is_json = run.log_format == "json"
        code = FAILURE_EXIT_CODE
        try:
            RunDir(self.directory).record_pid("launcher", os.getpid())  # even if the host has just been killed
            os.setpgid(0, 0)
            watch_lifeline(self._top, lambda: os.kill(os.getpid(), signal.SIGTERM))
            code = serve(config, server_commands(config), console, began_s)
        except Exception as error:
            console.show(str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}", "error")
        finally:
            console.close()
            with suppress(OSError):
                if code:
                    (self.directory / "error").write_text(console.last_error, encoding="utf-8")
            if not has_launcher(self._top):
                leave_abandoned_run(self._top)
        return code


def _with_model(text: str, name: str) -> str:
    return f'{text.rstrip()[:-1]},"model":{msgspec.json.encode(name).decode()}}}'


class _LauncherConsole(Console):
    """Remembers the latest error: why a launcher that has failed ends. Shows only the first line of other texts,
    without what they say about the keyboard."""

    last_error = "its server ended with an error"

    def show(self, text: str, level: str = "info") -> None:
        if level == "error":
            self.last_error = text.strip()
        super().show(text.strip() if level == "error" else re.split("\n|; Ctrl-C", text.strip())[0], level)
