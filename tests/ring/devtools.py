"""A page in a headless Chromium, controlled by the DevTools protocol over two pipes, without a driver or a socket."""

import base64
import fcntl
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.ring.browser import FLAGS

TIMEOUT_S = 90.0
POLL_S = 0.1
COMMANDS_FD, EVENTS_FD = 3, 4
"""The descriptors that Chromium uses with --remote-debugging-pipe."""

MIN_FD = 10
"""Descriptors from here on are neither of these two."""


class BrowserPage:
    """One tab. `problems` are the errors and warnings of its console, and uncaught exceptions."""

    def __init__(self, browser: str, width: int = 1400, height: int = 1000, flags: Sequence[str] = ()):
        self.problems: list[str] = []
        self._last_id = 0
        self._rest = b""
        self._session = ""
        self._profile = tempfile.TemporaryDirectory(prefix="sluice-browser-", ignore_cleanup_errors=True)
        own = [flag for flag in FLAGS if not flag.startswith("--remote-debugging")]
        size = f"--window-size={width},{height}"
        command = [browser, *own, "--remote-debugging-pipe", size, f"--user-data-dir={self._profile.name}", *flags]
        commands, self._writer = os.pipe()
        self._reader, events = os.pipe()
        provided = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, MIN_FD) for descriptor in (commands, events)]
        redirect = f'exec "$0" "$@" {COMMANDS_FD}<&{provided[0]} {EVENTS_FD}>&{provided[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, *command], pass_fds=provided, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for descriptor in provided:
            os.close(descriptor)
        os.close(commands)
        os.close(events)

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._writer)
        os.close(self._reader)
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Returns the result of a DevTools command."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._record(answer)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, or of its promise."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Waits until the expression is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.problems}\n{self.run(PAGE_TEXT)}"
            time.sleep(POLL_S)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def _read(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._reader, 65536)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _record(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning"):
                self.problems.append(json.dumps(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.problems.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))


PAGE_TEXT = "document.body?.innerText.slice(0, 3000)"
