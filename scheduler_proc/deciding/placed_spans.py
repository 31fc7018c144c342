"""The spans of prompts (`messages/ring/spans.py`): which are accepted, what they wait for, where their rows are.

The rows of an image are asked for while its request waits, in the order of the queue, and are needed until the step
with the last token of its span. A preempted request waits for them again. The rows of a span of kind `embeds` are there
before the request, and until it ends.
"""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from messages.columns import INT32, unpack_int32
from messages.errors import ErrorInfo, bad_request
from messages.ring.encodings import EncoderStarted, FromEncoder, ImageEncoded, key_of
from messages.ring.requests import FramesLost, UserMsg
from messages.ring.spans import ALL_POSITIONS, PromptSpan, check_spans
from messages.ring.timeline import WaitsFor
from scheduler_proc.deciding.image_asks import Ask, Encoders, ImageAsks
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.page_keys import MIN_PAGE_TOKENS, two_way_at
from scheduler_proc.deciding.pages.resource import NO_COLUMNS, Resource, StepRows
from scheduler_proc.deciding.pages.running_request import Chunk, Req
from scheduler_proc.deciding.requests import PendingReq, State
from scheduler_proc.deciding.row_places import RowMemory, RowPlaces
from scheduler_proc.deciding.sampling.endings import Ending

NOT_PLACED: "array[int]" = array(INT32, [-1])
MIB = 1 << 20


class PlacedSpan:
    """A span of a request, the number of its rows and their key."""

    def __init__(self, span: PromptSpan, token_ids: "array[int]", has_encoders: bool):
        self.span = span
        is_all = span.placeholder == ALL_POSITIONS
        self.num_rows = span.length if is_all else token_ids[span.start : span.end].count(span.placeholder)
        self.is_encoded = has_encoders and span.kind == "image"
        """Its rows are asked for. The rows of other spans are there before the request."""
        self.key = key_of(span.digest, self.num_rows)


class PlacedSpans(Resource):
    """Without `memory`, or with smaller pages than `MIN_PAGE_TOKENS`, no request may have spans.

    Without `encoders` none may have images. A step has at most `max_num_tokens`.
    """

    name = "encoding"

    def __init__(
        self, memory: RowMemory | None, page_size: int, encoders: Encoders | None = None, max_num_tokens: int = 1 << 30
    ):
        self._memory = memory if page_size >= MIN_PAGE_TOKENS else None
        self._max_num_tokens = max_num_tokens
        self._spans: dict[int, list[PlacedSpan]] = {}
        """By uid."""
        self._images: dict[int, PendingReq] = {}
        """By uid: the requests with images."""
        self._running: dict[int, Req] = {}
        """By uid: those of them that have a row."""
        self._cached: dict[int, int] = {}
        """By uid: the number of tokens of a waiting request that are cached, so that they need no rows."""
        self._reserved: set[bytes] = set()
        """The encodings that requests will need, as far as there is room for them."""
        self._num_hits = self._num_misses = self._num_encoded = 0
        self._asks: ImageAsks | None = None
        if memory is not None:
            memory.reserve = self._place
            self._rows = RowPlaces(memory)
            self._asks = None if encoders is None else ImageAsks(encoders, self._rows)

    def refuse(self, message: UserMsg) -> None:
        if not message.spans:
            return
        if self._memory is None:
            raise bad_request(f"this model takes no spans, or --block-size is below {MIN_PAGE_TOKENS}", "prompt")
        token_ids, num_rows = unpack_int32(message.input_ids), dict[bytes, int]()
        check_spans(message.spans, len(token_ids))
        for index, span in enumerate(message.spans):
            placed = PlacedSpan(span, token_ids, self._asks is not None)
            if placed.is_encoded:
                self._refuse_image(message, placed)
                num_rows[placed.key] = placed.num_rows
            elif placed.key not in self._rows:
                if span.kind == "image":
                    text = "this engine has no encoder: images need an engine on the server's own machine"
                    raise bad_request(f"image input is not supported: {text}", "messages")
                raise bad_request(f"there are no rows for span {index}, which needs {placed.num_rows}", "prompt")
        if sum(num_rows.values()) > self._memory.num_rows:
            mib = [count * self._memory.row_bytes / MIB for count in (sum(num_rows.values()), self._memory.num_rows)]
            text = f"The encodings of the images take {mib[0]:.1f} MiB, and --image-cache-mb has room for {mib[1]:.1f}"
            raise bad_request(f"{text}: send fewer or smaller images", message.images[0].param)

    def _refuse_image(self, message: UserMsg, placed: PlacedSpan) -> None:
        span, images = placed.span, message.images
        if not 0 <= span.image < len(images) or not placed.num_rows:
            raise bad_request(f"a span has image {span.image} of {len(images)}, and {placed.num_rows} rows", "prompt")
        if span.is_two_way and span.length > self._max_num_tokens:
            text = f"An image has {span.length} tokens, which one step must compute, and a step has at most"
            raise bad_request(f"{text} {self._max_num_tokens} (--max-num-batched-tokens)", images[span.image].param)

    def prepare(self, pending: PendingReq) -> bool:
        if pending.spans:
            spans = self._spans[pending.uid] = [
                PlacedSpan(span, pending.token_ids, self._asks is not None) for span in pending.spans
            ]
            keys = {placed.key for placed in spans if placed.is_encoded}
            if keys:
                self._images[pending.uid] = pending
                num_hits = sum([key in self._rows for key in keys])
                self._num_hits += num_hits
                self._num_misses += len(keys) - num_hits
        return False

    def on_admitted(self, req: Req) -> None:
        if req.uid in self._images:
            self._running[req.uid] = req
            for placed in self._needed_by(req.pending):
                self._rows.use(placed.key)

    def on_closed(self, req: Req) -> None:
        if self._running.pop(req.uid, None) is not None:
            self._cached.pop(req.uid, None)

    def on_finished(self, uid: int) -> None:
        self._spans.pop(uid, None)
        self._cached.pop(uid, None)
        if self._images.pop(uid, None) is not None and self._asks:
            self._asks.forget({placed.key for other in self._images for placed in self._spans[other]})

    def receive(self, message: FromEncoder | FramesLost) -> None:
        if self._asks is None:
            return
        match message:
            case ImageEncoded():
                self._num_encoded += self._asks.receive(message)
            case EncoderStarted():
                self._asks.record_started(message.encoder, message.suspect)
            case FramesLost():
                self._asks.repeat_all()

    @property
    def is_loading(self) -> bool:
        return any(not self._has_rows(pending) for pending in self._images.values())

    def collect(self, waiting: Iterable[PendingReq], cache: BlockAllocator) -> Sequence[tuple[PendingReq, Ending]]:
        """Asks for the images that requests lack. Returns the waiting requests whose images cannot be encoded."""
        if not self._images or self._asks is None:
            return ()
        self._asks.follow_encoders()
        failed, self._asks.failed = self._asks.failed, {}
        ended: list[tuple[PendingReq, Ending]] = []
        lines = [req.pending for req in self._running.values()]
        for pending in waiting:
            if pending.uid in self._images:
                error = self._find_error(pending, failed)
                lines += [pending] if error is None else []
                ended += [] if error is None else [(pending, Ending("error", error=error))]
        self._reserve(self._asks, lines, cache)
        return ended

    def _find_error(self, pending: PendingReq, failed: Mapping[bytes, ErrorInfo]) -> ErrorInfo | None:
        for placed in self._spans[pending.uid] if failed else ():
            if placed.key in failed:
                param = pending.images[placed.span.image].param
                return msgspec.structs.replace(failed[placed.key], param=param)
        return None

    def _reserve(self, asks: ImageAsks, requests: Iterable[PendingReq], cache: BlockAllocator) -> None:
        """Asks for what the requests lack, in their order, while there is room and an encoder is free."""
        self._reserved = set()
        for pending in requests:
            needed = self._needed_by(pending)
            if pending.uid not in {**self._cached, **self._running} and not self._are_known(needed, asks):
                self._cached[pending.uid] = count_cached(pending, cache)
                needed = self._needed_by(pending)
            self._reserved |= {placed.key for placed in needed}
            for placed in needed:
                if self._are_known((placed,), asks):
                    continue
                places = self._rows.reserve(placed.key, placed.num_rows, self._needed()) if asks.can_ask else None
                if places is None:
                    return
                asks.start(Ask(placed.key, pending.images[placed.span.image], len(pending.images), places))

    def _are_known(self, needed: Iterable[PlacedSpan], asks: ImageAsks) -> bool:
        return all(placed.key in self._rows or placed.key in asks for placed in needed)

    def _needed_by(self, pending: PendingReq) -> list[PlacedSpan]:
        """Returns the images of a request with tokens that must still be computed."""
        req = self._running.get(pending.uid)
        num_computed = self._cached.get(pending.uid, 0) if req is None else req.num_computed_tokens
        spans = self._spans[pending.uid]
        return [placed for placed in spans if placed.is_encoded and placed.span.end > num_computed]

    def _has_rows(self, pending: PendingReq) -> bool:
        return all(placed.key in self._rows for placed in self._needed_by(pending))

    def admissible(self, waiting: Iterable[PendingReq]) -> Iterable[PendingReq]:
        if not self._images:
            return waiting
        return (pending for pending in waiting if pending.uid not in self._images or self._has_rows(pending))

    def find_wait(self, pending: PendingReq) -> WaitsFor | None:
        return self.name if pending.uid in self._images and not self._has_rows(pending) else None

    def num_lacking(self, req: Req, prefilling: Sequence[Req], num_active: int, max_num_tokens: int) -> int:
        """Returns the number of images that an opened request lacks, if fewer of its tokens are cached than before."""
        if self._cached.get(req.uid, 0) <= req.num_computed_tokens:
            return 0
        del self._cached[req.uid]
        ends = [placed.span.end for placed in self._needed_by(req.pending) if placed.key not in self._rows]
        return sum([end > req.num_computed_tokens for end in ends])

    def find_delay(self, req: Req, chunks: Iterable[Chunk], cache: BlockAllocator) -> int | None:
        """Returns a request that has begun again, and whose rows are no longer there, itself."""
        return req.uid if req.uid in self._images and not self._has_rows(req.pending) else None

    def find_whole(self, req: Req, position: int) -> range | None:
        span = two_way_at(req.pending.spans, position)
        return None if span is None else range(span.start, span.end)

    def columns(self, rows: StepRows, chunks: Sequence[Chunk]) -> Mapping[str, bytes]:
        """Returns `Batch.placed_rows`, unless no token of the chunks belongs to a span."""
        if not self._spans:
            return NO_COLUMNS
        placed_rows = NOT_PLACED * len(rows.reqs)
        for req, start, end, _, draft_ids, _ in chunks:
            own = NOT_PLACED * (end - start + len(draft_ids))
            for placed in self._spans.get(req.uid, ()):
                first, last = max(start, placed.span.start), min(end, placed.span.end)
                if first < last:
                    self._place_rows(own, start, req.token_ids, placed, range(first, last))
            placed_rows += own
        return {"placed_rows": placed_rows.tobytes()} if max(placed_rows) >= 0 else NO_COLUMNS

    def _place_rows(
        self, own: "array[int]", start: int, token_ids: "array[int]", placed: PlacedSpan, part: range
    ) -> None:
        """Puts the places of the rows of a `part` of a span into `own`, which begins with token `start`."""
        span, found = placed.span, self._rows.find(placed.key)
        assert len(found) == placed.num_rows, "the rows of a span were dropped"
        if span.placeholder == ALL_POSITIONS:
            own[part.start - start : part.stop - start] = found[part.start - span.start : part.stop - span.start]
            return
        index = token_ids[span.start : part.start].count(span.placeholder)
        for position in part:
            if token_ids[position] == span.placeholder:
                own[position - start] = found[index]
                index += 1

    def _needed(self) -> set[bytes]:
        """Returns the keys of the encodings that must stay."""
        needed = {placed.key for spans in self._spans.values() for placed in spans if not placed.is_encoded}
        for req in self._running.values():
            needed |= {placed.key for placed in self._needed_by(req.pending)}
        return needed | self._reserved

    def _place(self, digest: bytes, num_rows: int) -> "array[int]":
        """Returns the places of rows of a span of kind `embeds`, which are written now. Raises `ValueError`."""
        key = key_of(digest, num_rows)
        if key in self._rows:
            self._rows.use(key)
        elif self._rows.reserve(key, num_rows, self._needed()) is None:
            raise ValueError(f"there is no room for {num_rows} rows of a span, for those that requests need")
        else:
            self._rows.keep(key)
        return self._rows.find(key)

    def gauges(self) -> dict[str, float]:
        if self._memory is None or self._asks is None:
            return {}
        waiting = [pending for uid, pending in self._images.items() if uid not in self._running]
        return {
            "images_cached": self._rows.num_complete,
            "images_recovered": self._rows.num_recovered,
            "images_evicted": self._rows.num_evicted,
            "images_encoding": len(self._asks),
            "images_waiting": sum([not self._has_rows(pending) for pending in waiting]),
            "images_encoded": self._num_encoded,
            "image_hits": self._num_hits,
            "image_misses": self._num_misses,
            "encoding_bytes": self._rows.num_in_use * self._memory.row_bytes,
        }

    def check(self, reqs: Sequence[Req], free: Collection[int], cached: Collection[int]) -> None:
        """Asserts that it knows the running requests with images, and each row has one owner."""
        if self._memory is not None:
            self._rows.check()
        assert {req.uid for req in reqs if req.uid in self._images} == self._running.keys(), (
            "a row's images are unknown"
        )


def count_cached(pending: PendingReq, cache: BlockAllocator) -> int:
    """Returns how many tokens of a waiting request are cached."""
    req = cache.open(pending)
    pending.state = State.PREFILL
    cache.find_prefix(req)
    cache.close(req)
    pending.state = State.WAITING
    return req.num_computed_tokens
