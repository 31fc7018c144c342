"""The lines that were typed in earlier chats, kept in a file of the user's cache."""

import readline
from collections.abc import Generator
from contextlib import contextmanager, suppress

from supervisor.model.gguf.cache import cache_dir

MAX_LINES = 1000


@contextmanager
def kept_history() -> Generator[None]:
    """Reads the history for the block and writes it at the end. Without a cache directory there is none."""
    path = cache_dir().with_name("history")
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_LINES)
    try:
        yield
    finally:
        with suppress(OSError):
            path.touch(mode=0o600)
            readline.write_history_file(path)
