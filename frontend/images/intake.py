"""The way of a request's images to files in the run directory and their `ImageInput`s, with all refusals on it."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from frontend.errors import UnavailableError
from frontend.images.addresses import UrlRules, is_http
from frontend.images.checks import ImageChecks
from frontend.images.data import read_data
from frontend.images.fetch import Fetch
from frontend.images.parts import BAD_URL, ImagePart, bad_image, too_large
from frontend.images.store import ImageStore
from frontend.requests.client import Client
from frontend.requests.trace import RequestTrace
from messages.config.server import Config
from messages.errors import RequestError
from messages.ring.images import ImageInput
from runtime.black_box.image_recorder import ImageRecorder

NUM_THREADS = 2
"""For decoding base64 and checking images, which take turns with the event loop."""

NUM_FETCHES = 8
"""At once. Each has a thread, because the resolution of a name cannot be cancelled."""

FETCH_TIMEOUT_S = 10.0
"""For one image, with its redirects."""

MAX_FETCHES = 64
"""With those that wait, or the images of one request if they are more."""

IMAGES_OF_FULL_SIZE = 16
"""Images of the largest size that fit into the memory for images."""

LOW_DETAIL_TOKENS = 256
"""The limit of `detail: low`: the tokens of 512 × 512 pixels in families with one token per 32 × 32."""

FileReader = Callable[[str, Client, int], bytes]
"""Returns the bytes of an uploaded file of a client, or more than this many if it is larger. Raises `RequestError`."""

T = TypeVar("T")


class ImageIntake:
    """`read_file` finds images by `file_id`, if an extra stores files."""

    def __init__(self, config: Config, directory: Path, owner: int, on_refusal: Callable[[UnavailableError], object]):
        self._config = config.images
        self._is_supported = config.facts.vision is not None
        self._max_bytes = int(config.images.max_image_mb * 2**20)
        limit_bytes = IMAGES_OF_FULL_SIZE * self._max_bytes // config.run.frontend_workers
        self.store = ImageStore(directory, owner, max(limit_bytes, self._max_bytes), on_refusal)
        if config.run.record and config.run.record_images_mb:
            self.store.recorder = ImageRecorder(Path(config.run.record), config.run.record_images_mb << 20)
        self.read_file: FileReader | None = None
        self._checks = ImageChecks(config.images.max_image_pixels * 10**6)
        self._urls = UrlRules(config.images.image_urls)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "images")
        if self._is_supported:
            self._threads.submit(self._checks.start)
        self._fetches = asyncio.Semaphore(NUM_FETCHES)
        self._num_fetches = 0

    def gauges(self) -> dict[str, float]:
        if not self._is_supported:
            return {}
        return {"image_bytes": self.store.num_bytes, "image_fetches": self._num_fetches}

    def close(self) -> None:
        """Ends the children, and thereby what threads wait for."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._checks.close()

    async def take(self, parts: Sequence[ImagePart], trace: RequestTrace) -> tuple[ImageInput, ...]:
        """Stores and checks the images of a request; their files are kept until `trace` ends, or their requests.

        Raises `RequestError`, for the first part in order that cannot be used.
        """
        self._check_parts(parts)
        tasks = [asyncio.create_task(self._take(part, trace)) for part in parts]
        try:
            return tuple([await task for task in tasks])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _check_parts(self, parts: Sequence[ImagePart]) -> None:
        """Raises `RequestError` (400) before anything is decoded or fetched."""
        if parts and not self._is_supported:
            raise bad_image(parts[0].param, "image input is not supported by this model", "not_supported")
        limit = self._config.max_images
        if len(parts) > limit:
            text = f"the request has {len(parts)} images, and may have {limit} (--max-images)"
            raise bad_image(parts[limit].param, text, "too_many_images")
        for part in parts:
            if part.file_id and self.read_file is None:
                raise bad_image(part.param, "this server stores no files (--batch-dir)", "not_supported")
            if is_http(part.url):
                self._urls.check(part.url, part.param)

    async def _take(self, part: ImagePart, trace: RequestTrace) -> ImageInput:
        digest = await (self._fetch(part) if is_http(part.url) else self._read(part, trace.client))
        trace.images.append(digest)
        path = self.store.path(digest)
        width, height = await self._run(self._threads.submit(self._checks.size, digest, path, part.param))
        max_tokens = [self._config.image_max_tokens, LOW_DETAIL_TOKENS if part.detail == "low" else 0]
        return ImageInput(
            digest,
            width,
            height,
            min_pixels=part.limits.min_pixels,
            max_pixels=part.limits.max_pixels,
            max_tokens=min(filter(None, max_tokens), default=0),
            param=part.param,
        )

    async def _read(self, part: ImagePart, client: Client) -> bytes:
        """Stores an image that the body or a file has, and returns its digest."""

        def read() -> bytes:
            if part.file_id and self.read_file is not None:
                try:
                    data = self.read_file(part.file_id, client, self._max_bytes)
                except RequestError as error:
                    raise bad_image(part.param, error.info.message, error.info.code) from None
                return self._put(data, part)
            return self._put(read_data(part.url, part.param, self._max_bytes), part)

        return await self._run(self._threads.submit(read), self._drop)

    async def _fetch(self, part: ImagePart) -> bytes:
        """Stores an image that a URL names, and returns its digest."""
        if self._num_fetches >= max(MAX_FETCHES, self._config.max_images):
            raise UnavailableError(f"{self._num_fetches} images are being fetched: try again later", "queue_full")
        fetch = Fetch(part.url, self._urls, part.param, self._max_bytes)
        self._num_fetches += 1
        try:
            async with self._fetches, asyncio.timeout(FETCH_TIMEOUT_S):
                return await self._run(run_in_thread(lambda: self._put(fetch.run(), part)), self._drop)
        except TimeoutError:
            text = f"the image could not be fetched within {FETCH_TIMEOUT_S:g} s"
            raise bad_image(part.param, text, BAD_URL) from None
        finally:
            fetch.cancel()
            self._num_fetches -= 1

    def _put(self, data: bytes | bytearray, part: ImagePart) -> bytes:
        if len(data) > self._max_bytes:
            raise too_large(part.param, len(data), self._max_bytes)
        return self.store.put(data)

    def _drop(self, digest: bytes) -> None:
        self.store.release([digest])

    async def _run(self, job: "Future[T]", undo: Callable[[T], object] | None = None) -> T:
        """Returns the result of a job in a thread. If the caller is cancelled, `undo` gets it."""
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if undo is not None:
                job.add_done_callback(partial(_undo, undo))
            raise


def run_in_thread(call: Callable[[], T]) -> "Future[T]":
    """Runs `call` in a thread that does not keep the process alive."""
    job: Future[T] = Future()

    def run() -> None:
        if job.set_running_or_notify_cancel():
            try:
                job.set_result(call())
            except BaseException as error:
                job.set_exception(error)

    threading.Thread(target=run, name="image fetch", daemon=True).start()
    return job


def _undo(undo: Callable[[T], object], job: "Future[T]") -> None:
    if not job.cancelled() and job.exception() is None:
        undo(job.result())
