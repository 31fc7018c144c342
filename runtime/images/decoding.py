"""Decodes image files in a child process with limits of memory and CPU time (`image_child.py`)."""

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from runtime.child_process import ChildEndedError, RestartedChild
from runtime.images.errors import ImageError
from runtime.images.layout import Layout, Size

if TYPE_CHECKING:
    from runtime.images.pixels import Pixels

MAX_WAIT_S = 60.0
"""How long to wait before killing a child that gets no CPU time."""

MIN_CPU_S = 5.0
PIXELS_PER_S = 4e6
"""For the limit of CPU time. Slow formats decode 10 million pixels a second."""


class ImageTask(msgspec.Struct, frozen=True):
    """`layout`: that of the views to make; `None` decodes for the size only. `cpu_s` limits the CPU time."""

    path: str
    max_pixels: int
    layout: Layout | None = None
    cpu_s: float = 0.0

    @property
    def num_view_pixels(self) -> int:
        """The pixels of the largest images that are made on the way from the original to the views."""
        sizes = () if self.layout is None else (*self.layout.resizes, self.layout.pad or (0, 0))
        return max((width * height for width, height in sizes), default=0)


class Views(msgspec.Struct, frozen=True, array_like=True):
    """The size of the upright image, and height, width and RGB pixels of its views."""

    size: Size
    views: list[tuple[int, int, bytes]]


Answer = Views | str
"""`str`: why the image cannot be used."""


class ImageDecoder:
    """Only one thread may use it at a time; `close` may be called from any. The child starts at once."""

    def __init__(self) -> None:
        self._child = RestartedChild("runtime.images.image_child", limit_signal=signal.SIGPROF)
        self._child.start()

    def size(self, path: Path, max_pixels: int) -> Size:
        """Decodes the whole image and returns its width and height, upright. Raises `ImageError`."""
        return self._ask(ImageTask(str(path), max_pixels)).size

    def views(self, path: Path, layout: Layout, max_pixels: int) -> "list[Pixels]":
        """Returns the views of a layout, arrays [height, width, 3] of uint8. Raises `ImageError`."""
        import numpy as np

        answer = self._ask(ImageTask(str(path), max_pixels, layout))
        return [
            np.frombuffer(bytearray(pixels), np.uint8).reshape(height, width, 3)
            for height, width, pixels in answer.views
        ]

    def close(self) -> None:
        """Ends the child."""
        self._child.close()

    def _ask(self, task: ImageTask) -> Views:
        cpu_s = MIN_CPU_S + (task.max_pixels + task.num_view_pixels) / PIXELS_PER_S
        try:
            task = msgspec.structs.replace(task, cpu_s=cpu_s)
            reply = self._child.ask(msgspec.msgpack.encode(task), MAX_WAIT_S)
        except ChildEndedError as error:
            if error.exit_code == -signal.SIGPROF:
                raise ImageError(f"it was not decoded within {cpu_s:.1f} s of CPU time") from None
            if error.is_ours:
                raise ImageError(
                    "it was not decoded, because the process that decodes images ended or got no CPU time; try again",
                    503,
                ) from None
            raise ImageError("it ended the process that decodes it; it is probably damaged") from None
        answer = msgspec.msgpack.decode(reply, type=Answer)
        if isinstance(answer, str):
            raise ImageError(answer)
        return answer
