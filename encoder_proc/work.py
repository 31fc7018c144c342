"""The images that an encoder has been asked for: in which order it encodes them, and where their rows go."""

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Protocol

from messages.columns import unpack_int32
from messages.errors import ErrorInfo, RequestError
from messages.ring.encodings import EncodeImage, ForgetImage, ImageEncoded, OpenAsks
from messages.ring.images import ImageInput
from runtime.histograms import Histogram
from runtime.row_file import RowFile

NO_IMAGE = b""

log = logging.getLogger("sluice.encoder")


class Encode(Protocol):
    """Encodes an image of a prompt with `num_images`; called in one thread alone.

    `placement`: the device and the dtype of the tower.
    """

    placement: dict[str, str]

    def __call__(self, image: ImageInput, num_images: int) -> memoryview:
        """Returns the bytes of its rows, in the model's number format. Raises `RequestError` for an unusable image."""
        ...


class Work:
    """The open asks of all engines, first come, first served. One image at a time is encoded by `executor`.

    `wake` is called in another thread when it has been. `find_file` returns the link to the rows of an engine.
    `work_file` names the image in work, so that the next process knows which one ended this one.
    """

    def __init__(
        self,
        encode: Encode,
        executor: Executor,
        wake: Callable[[], None],
        find_file: Callable[[int], Path],
        work_file: Path,
    ):
        self._encode, self._executor, self._wake = encode, executor, wake
        self._find_file, self._work_file = find_file, work_file
        self._files: dict[int, RowFile] = {}
        self._waiting: deque[EncodeImage] = deque()
        self._begun: tuple[EncodeImage, Future[ImageEncoded]] | None = None
        self._begun_s = 0.0
        self.seconds = Histogram("image_seconds")
        self.num_encoded = self.num_failed = 0

    @property
    def is_busy(self) -> bool:
        return self._begun is not None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy_s(self) -> float:
        """How long it has worked on the present image; 0 without one."""
        return time.monotonic() - self._begun_s if self._begun else 0.0

    def pop_suspect(self) -> bytes:
        """Returns the encoding digest of the image during which the process before this one died, if it did."""
        try:
            return self._work_file.read_bytes()
        except OSError:
            return NO_IMAGE

    def add(self, message: EncodeImage) -> None:
        self._waiting.append(message)

    def forget(self, message: ForgetImage) -> ImageEncoded | None:
        """Returns the answer about an image that no request needs, `None` if it has begun or is unknown."""
        for waiting in self._waiting:
            if (waiting.engine, waiting.ask) == (message.engine, message.ask):
                self._waiting.remove(waiting)
                return ImageEncoded(message.ask)
        return None

    def answer_unknown(self, message: OpenAsks) -> list[ImageEncoded]:
        """Returns the answers about those of an engine's asks that neither wait nor are in work."""
        begun = [] if self._begun is None else [self._begun[0]]
        known = {each.ask for each in (*self._waiting, *begun) if each.engine == message.engine}
        return [ImageEncoded(ask) for ask in message.asks if ask not in known]

    def forget_engine(self, engine: int) -> None:
        """Forgets what an engine asked for. If it is being encoded, its rows will be written nowhere."""
        self._waiting = deque(message for message in self._waiting if message.engine != engine)
        self._files.pop(engine, None)

    def forget_all(self) -> None:
        self._waiting.clear()

    def turn(self) -> tuple[int, ImageEncoded] | None:
        """Begins the next image, if none is in work. Returns the one that has ended, with its engine."""
        ended = None
        if self._begun is not None and self._begun[1].done():
            (message, future), self._begun = self._begun, None
            self._record(NO_IMAGE)
            ended = message.engine, future.result()
            self._count(ended[1])
        if self._begun is None and self._waiting:
            message = self._waiting.popleft()
            self._record(message.image.encoding_digest())
            self._begun_s = time.monotonic()
            future = self._executor.submit(self._answer, message)
            future.add_done_callback(lambda _: self._wake())
            self._begun = message, future
        return ended

    def close(self) -> None:
        """The process ends as it should: the image in work is not suspected."""
        self._record(NO_IMAGE)

    def _count(self, answer: ImageEncoded) -> None:
        if answer.num_rows:
            self.seconds.add(answer.seconds)
        self.num_encoded += bool(answer.num_rows)
        self.num_failed += answer.error is not None

    def _answer(self, message: EncodeImage) -> ImageEncoded:
        """Encodes an image and writes its rows. Never raises."""
        begun_s, places = time.monotonic(), unpack_int32(message.places)
        try:
            rows = self._encode(message.image, message.num_images)
            file = self._file(message.engine)
            if rows.nbytes != len(places) * file.row_bytes:
                text = f"{rows.nbytes} bytes for {len(places)} rows of {file.row_bytes} bytes"
                raise ValueError(f"the tower has made {text}")
            checksum = file.write(message.ask, places, rows)
        except RequestError as error:
            return ImageEncoded(message.ask, error=error.info)
        except Exception as error:
            reference = secrets.token_hex(4)
            log.exception("image %s was not encoded, reference %s", message.image.digest.hex(), reference)
            text = f"The image could not be encoded: {type(error).__name__} (reference {reference})"
            return ImageEncoded(message.ask, error=ErrorInfo(500, text, "server_error", message.image.param))
        if checksum is None:  # the engine has a successor, or asked again
            return ImageEncoded(message.ask)
        return ImageEncoded(message.ask, len(places), checksum, time.monotonic() - begun_s)

    def _file(self, engine: int) -> RowFile:
        file = self._files.get(engine)
        if file is None:
            file = self._files[engine] = RowFile(self._find_file(engine))
        return file

    def _record(self, digest: bytes) -> None:
        try:
            self._work_file.write_bytes(digest)
        except OSError as error:
            log.warning("%s was not written: %s", self._work_file, error)
