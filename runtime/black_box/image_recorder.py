"""Keeps the image files of recorded requests, whose frames have only their digests (`--record-images-mb`)."""

import logging
import os
from pathlib import Path

FOLDER = "images"
"""In the directory of the recording."""

MAX_FILES = 10_000

log = logging.getLogger("sluice.black_box")


class ImageRecorder:
    """A folder with the files of images, named after their digests, which all frontends fill.

    The least recently used ones are deleted beyond `max_bytes`. If the disk is full, the process serves without them.
    """

    def __init__(self, recording: Path, max_bytes: int):
        self._folder = recording / FOLDER
        self._max_bytes = max_bytes
        self._has_failed = False

    def add(self, digest: bytes, data: bytes | bytearray) -> None:
        """Writes the file, unless it is there. Thread-safe."""
        file = self._folder / digest.hex()
        new = file.with_suffix(f".{os.getpid()}.{id(data)}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if file.exists():
                file.touch()
                return
            new.write_bytes(data)
            new.rename(file)
            self._trim()
        except OSError as error:
            new.unlink(missing_ok=True)
            if not self._has_failed:
                log.error("images are not recorded: %s", error)
            self._has_failed = True

    def _trim(self) -> None:
        with os.scandir(self._folder) as entries:
            files = [(entry.stat().st_mtime_ns, entry.stat().st_size, Path(entry.path)) for entry in entries]
        num_bytes = 0
        for index, (_, size, file) in enumerate(sorted(files, reverse=True)):
            num_bytes += size
            if num_bytes > self._max_bytes or index >= MAX_FILES:
                file.unlink(missing_ok=True)
