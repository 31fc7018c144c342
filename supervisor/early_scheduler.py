"""A process of an engine that is begun before it is needed: nothing else takes as long as importing torch.

The first scheduler is begun before the launcher's own imports, spares for the ranks of an engine while it serves.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from supervisor.python_process import python_command, python_environment

COMMAND = python_command("scheduler_proc")


class EarlyScheduler:
    """A process that imports a scheduler's modules and waits for its command line. Call `end` if none comes.

    One that `is_spare` does so without slowing others down.
    """

    def __init__(self, *, is_spare: bool = False) -> None:
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
            [*COMMAND, "--early", str(os.getpid()), *["--spare"] * is_spare],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=python_environment(),
            process_group=0,
        )

    def continue_after(self, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Gives it a module and its command line. Returns the process, or None if it has ended or is already in use."""
        if self._process is None or self._process.poll() is not None:
            return None
        process, self._process = self._process, None
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # its end is noticed as that of any process
            process.stdin.write(json.dumps(arguments).encode())
            process.stdin.close()
        return process

    def end(self) -> None:
        """Kills it, unless it is in use."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
