"""The files of images while open requests may need them: a directory that all frontends of a run share."""

import contextlib
import fcntl
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from pathlib import Path

from frontend.errors import UnavailableError
from messages.ring.images import IMAGE_DIGEST_BYTES
from runtime.black_box.image_recorder import ImageRecorder

TEMPORARY = ".new"


class ImageStore:
    """Files named after the digests of their contents, at most `limit_bytes` of this frontend. Thread-safe.

    Processes read `directory/DIGEST`. It is a hard link, as is `directory/OWNER/DIGEST` of each frontend with open
    requests that need it: a file with one link belongs to no frontend. `on_refusal` is called with the 503 for an image
    beyond the limit. `recorder` gets each image that is new here.
    """

    recorder: ImageRecorder | None = None

    def __init__(self, directory: Path, owner: int, limit_bytes: int, on_refusal: Callable[[UnavailableError], object]):
        self._directory = directory
        self._own = directory / f"{owner}"
        self._limit_bytes = limit_bytes
        self._on_refusal = on_refusal
        self._lock = threading.Lock()
        self._counts: dict[bytes, int] = {}
        """Numbers of references."""
        self._sizes: dict[bytes, int] = {}
        self._numbers = itertools.count()
        self.num_bytes = 0
        self._living: set[int] = set()

    def path(self, digest: bytes) -> Path:
        return self._directory / digest.hex()

    def put(self, data: bytes | bytearray) -> bytes:
        """Returns the digest of an image, to which the caller holds a reference. Raises `UnavailableError` if full."""
        digest = hashlib.blake2b(data, digest_size=IMAGE_DIGEST_BYTES).digest()
        with self._lock:
            if digest in self._counts:
                self._counts[digest] += 1
                return digest
            self._reserve(len(data))
        is_new = False
        try:
            if self.recorder is not None:
                self.recorder.add(digest, data)
            new = self._write(data)
            with self._lock:
                is_new = digest not in self._counts  # or another thread has stored it meanwhile
                if is_new:
                    self._publish(new, digest.hex())
                    self._counts[digest], self._sizes[digest] = 0, len(data)
                else:
                    new.unlink()
                self._counts[digest] += 1
        except OSError as error:
            is_new = False
            raise UnavailableError(f"the image could not be stored: {error.strerror}", "images_full") from None
        finally:
            if not is_new:
                with self._lock:
                    self.num_bytes -= len(data)
        return digest

    def hold(self, digests: Iterable[bytes]) -> None:
        """Adds a reference to each of these, which have one already."""
        with self._lock:
            for digest in digests:
                self._counts[digest] += 1

    def release(self, digests: Iterable[bytes]) -> None:
        """Drops a reference to each of these."""
        with self._lock:
            for digest in digests:
                self._counts[digest] -= 1
                if not self._counts[digest]:
                    del self._counts[digest]
                    self.num_bytes -= self._sizes.pop(digest)
                    with self._exclusive():
                        self._unlink(self._own / digest.hex())

    def clear_gone(self, living: Collection[int]) -> None:
        """Removes the files of frontends other than these. Call it when their set may have changed."""
        if set(living) == self._living:
            return
        self._living = set(living)
        if not self._directory.is_dir():
            return
        for entry in self._directory.iterdir():
            if not entry.is_dir():  # its owner may have died after the removal of its own name
                with self._exclusive():
                    self._unlink_public(entry)
            elif int(entry.name) not in living:
                with contextlib.suppress(OSError):  # another frontend may remove it, too
                    for file in entry.iterdir():
                        with self._exclusive():
                            self._unlink(file)
                    entry.rmdir()

    def _reserve(self, num_bytes: int) -> None:
        if self.num_bytes + num_bytes > self._limit_bytes:
            error = UnavailableError(
                f"the images of other requests fill the memory that is left for them, {self._limit_bytes} bytes: try "
                "again later",
                "queue_full",
            )
            self._on_refusal(error)
            raise error
        self.num_bytes += num_bytes

    def _write(self, data: bytes | bytearray) -> Path:
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._own / f"{next(self._numbers)}{TEMPORARY}"
        try:
            new.write_bytes(data)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        return new

    def _publish(self, new: Path, name: str) -> None:
        """Gives a written file its names, or takes the file of another frontend that has the same image."""
        public, own = self._directory / name, self._own / name
        with self._exclusive():
            try:
                own.hardlink_to(public)
            except FileNotFoundError:
                new.rename(own)
                public.hardlink_to(own)
            finally:
                new.unlink(missing_ok=True)

    def _unlink(self, own: Path) -> None:
        """Removes a frontend's name of a file, and the public one if it was the last frontend that needs it."""
        own.unlink(missing_ok=True)
        self._unlink_public(self._directory / own.name)

    def _unlink_public(self, public: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            if public.stat().st_nlink == 1:
                public.unlink()

    @contextlib.contextmanager
    def _exclusive(self) -> Generator[None]:
        """No other frontend gives or removes names meanwhile. Its death ends the lock."""
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
