"""The process that decodes images: it replies to each task with a size, the views of a layout, or an error.

    python -m runtime.images.image_child PARENT_PID

A task that exceeds its CPU time ends the process. It has a low priority, so that it delays text little.
"""

import resource
import signal
import sys
from pathlib import Path

import msgspec

from runtime.background import lower_priority
from runtime.child_process import limit_added_memory, lower_limit, open_pipes, read_frame, write_frame
from runtime.images.decoding import ImageTask, Views
from runtime.images.errors import ImageError
from runtime.images.pixels import decode, make_views

BYTES_PER_PIXEL = 24
"""What decoding may need: the pixels in the file's form and in RGB, 4 bytes each, and copies of them."""

OTHER_BYTES = 256 << 20

PRIORITY = 5
"""For a quarter of a core that another process keeps busy: a request waits for it. The lowest, 19, has 1 %."""


def main() -> int:
    requests, replies = open_pipes()
    lower_priority(PRIORITY)
    lower_limit(resource.RLIMIT_CORE, 0)
    lower_limit(resource.RLIMIT_FSIZE, 0)
    while (body := read_frame(requests)) is not None:
        task = msgspec.msgpack.decode(body, type=ImageTask)
        limit_added_memory(OTHER_BYTES + BYTES_PER_PIXEL * (task.max_pixels + task.num_view_pixels))
        signal.setitimer(signal.ITIMER_PROF, task.cpu_s)
        answer = _answer(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(replies, msgspec.msgpack.encode(answer))
    return 0


def _answer(task: ImageTask) -> Views | str:
    try:
        with Path(task.path).open("rb") as file:
            image = decode(file, task.max_pixels)
            views = [] if task.layout is None else make_views(image, task.layout)
            return Views(image.size, [(view.shape[0], view.shape[1], view.tobytes()) for view in views])
    except ImageError as error:
        return str(error)
    except OSError as error:
        return f"its file cannot be read: {error.strerror}"
    except MemoryError:
        return "it takes too much memory to decode; make it smaller"


if __name__ == "__main__":
    sys.exit(main())
