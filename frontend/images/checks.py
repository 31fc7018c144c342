"""Checks that image files can be decoded, in sandboxed children, and remembers the results."""

import threading
from collections import OrderedDict
from pathlib import Path

from frontend.errors import UnavailableError
from frontend.images.parts import bad_image
from runtime.images.decoding import ImageDecoder
from runtime.images.errors import ImageError
from runtime.images.layout import Size

MAX_REMEMBERED = 4096
"""Results for the latest images."""


class ImageChecks:
    """There are as many children as threads that check images at once."""

    def __init__(self, max_pixels: int):
        self._max_pixels = max_pixels
        self._decoders: list[ImageDecoder] = []
        self._idle: list[ImageDecoder] = []
        self._lock = threading.Lock()
        self._results: OrderedDict[bytes, Size | str] = OrderedDict()

    def size(self, digest: bytes, path: Path, where: str) -> Size:
        """Returns width and height of the upright image. Raises `RequestError`: 400, or 503 if it may work later."""
        result = self._results.get(digest) or self._decode(path, where)
        with self._lock:
            self._results[digest] = result
            self._results.move_to_end(digest)
            if len(self._results) > MAX_REMEMBERED:
                self._results.popitem(last=False)
        if isinstance(result, str):
            raise bad_image(where, result, "invalid_image")
        return result

    def start(self) -> None:
        """Starts a child now instead of with the first image. The calling thread must outlive it."""
        self._decoders.append(ImageDecoder())
        self._idle.append(self._decoders[-1])

    def close(self) -> None:
        for decoder in self._decoders:
            decoder.close()

    def _decode(self, path: Path, where: str) -> Size | str:
        """Raises `UnavailableError` if the image is not to blame."""
        with self._lock:
            if not self._idle:
                self.start()
            decoder = self._idle.pop()
        try:
            return decoder.size(path, self._max_pixels)
        except ImageError as error:
            if error.status != 400:
                raise UnavailableError(f"{where}: {error}", "busy") from None
            return str(error)
        finally:
            self._idle.append(decoder)
