"""The encoder's real process around a simulated tower: `python -m tests.encoder_proc.simulated_process`.

A row is the int32 that `row_value` returns. The width of an image decides what happens to it: it is as many rows, it
cannot be decoded (`BAD`), the tower fails (`BROKEN`), or the process dies (`DEADLY`).
"""

import os
import signal
import threading
import time
from pathlib import Path

from encoder_proc.process import PRIORITY, serve
from encoder_proc.work import Encode
from messages.columns import pack_int32
from messages.errors import bad_request
from messages.ring.images import ImageInput
from runtime.process import ProcessLink, run_process
from tests.scheduler_proc.simulated_spans import row_value

BAD, BROKEN, DEADLY = 1001, 1002, 1003
SLOW_HEIGHT = 2000
"""An image of this height waits until its file is there."""


class Simulated:
    """It starts at the normal priority and encodes at a low one."""

    def __init__(self, run_path: Path):
        self.placement: dict[str, str] = {}
        self._run_path = run_path

    def __call__(self, image: ImageInput, num_images: int) -> memoryview:
        assert priority() == PRIORITY
        file = path_of(image, self._run_path)
        while image.height == SLOW_HEIGHT and not file.exists():
            time.sleep(0.01)
        if image.width == BAD:
            raise bad_request("it is no image", image.param)
        if image.width == BROKEN:
            raise ArithmeticError("the tower is broken")
        if image.width == DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return memoryview(pack_int32([row_value(image.encoding_digest(), row) for row in range(image.width)]))


def load(link: ProcessLink) -> Encode:
    link.phase("simulating")
    assert priority() < PRIORITY
    return Simulated(link.run_dir.path)


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def path_of(image: ImageInput, run_path: Path) -> Path:
    """Returns the file whose existence ends the wait of a slow image."""
    return run_path / image.digest.hex()


if __name__ == "__main__":
    raise SystemExit(run_process("encoder_proc", lambda link: serve(link, load)))
