"""What the encoders are asked for: which encoder has which images, and what becomes of them if it dies."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.encodings import EncodeImage, EngineStarted, ForgetImage, ImageEncoded, OpenAsks
from messages.ring.images import ImageInput
from scheduler_proc.deciding.row_places import RowPlaces

MAX_ASKS = 2
"""Per encoder: one that it works on, and the next one."""

MAX_DEATHS = 3
"""An image fails when this many encoders have died of it."""

log = logging.getLogger("sluice.scheduler")


class Encoders(Protocol):
    """The channels to the encoders, as `scheduler_proc/encoder_senders.py` has them."""

    engine: int

    def send(self, encoder: str, message: EncodeImage | ForgetImage | OpenAsks | EngineStarted) -> None: ...

    def look(self) -> Collection[str] | None:
        """Returns the encoders that serve or will return, once a second; otherwise `None`."""
        ...


@dataclass
class Ask:
    """An image that an encoder has been asked for. It `is_forgotten` if no request needs it any more."""

    key: bytes
    image: ImageInput
    num_images: int
    places: Sequence[int]
    encoder: str = ""
    is_forgotten: bool = False


class ImageAsks:
    """The open asks by number, and those without an encoder, which has died.

    `failed` has the errors of the images that could not be encoded since they were taken.
    """

    def __init__(self, encoders: Encoders, rows: RowPlaces):
        self._encoders, self._rows = encoders, rows
        self._known: dict[str, int] = {}
        """The number of open asks of each encoder."""
        self._open: dict[int, Ask] = {}
        self._orphans: list[Ask] = []
        self._faults: Counter[bytes] = Counter()
        """By key: how often an encoder died of it, or its rows were damaged."""
        self.failed: dict[bytes, ErrorInfo] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._orphans)

    def __contains__(self, key: bytes) -> bool:
        return any(ask.key == key for ask in self._all())

    @property
    def keys(self) -> set[bytes]:
        return {ask.key for ask in self._all()}

    @property
    def can_ask(self) -> bool:
        """True if an encoder has room for another ask."""
        return any(num < MAX_ASKS for num in self._known.values()) and not self._orphans

    def start(self, ask: Ask) -> None:
        """Asks the encoder with the fewest open asks; without any, the ask waits for one."""
        self._orphans.append(ask)
        self._place_orphans()

    def receive(self, answer: ImageEncoded) -> bool:
        """Takes an encoder's answer; returns whether an encoding is complete now."""
        ask = self._open.pop(answer.ask, None)
        if ask is None:
            return False
        if ask.encoder in self._known:
            self._known[ask.encoder] -= 1
        is_complete = bool(answer.num_rows) and self._rows.complete(ask.key, answer.checksum)
        if is_complete:
            del self._faults[ask.key]
        elif answer.num_rows:
            log.warning("the encoding of an image was damaged: it is encoded again")
            self._repeat(ask, is_at_fault=True)
        else:
            self._rows.drop(ask.key)
            if answer.error is not None:
                self.failed[ask.key] = answer.error
        self._place_orphans()
        return is_complete

    def record_started(self, encoder: str, suspect: bytes = b"") -> None:
        """Asks again for what this encoder had been asked for; an image of which enough encoders died fails."""
        self._known[encoder] = 0
        self._take_back(encoder, suspect)
        self._place_orphans()

    def repeat_all(self) -> None:
        """Asks again for everything: a message to or from an encoder was lost."""
        for encoder in self._known:
            self.record_started(encoder)

    def forget(self, needed: Collection[bytes]) -> None:
        """Lets encoders forget the images that no request needs."""
        for ask in [ask for ask in self._orphans if ask.key not in needed]:
            self._orphans.remove(ask)
            self._rows.drop(ask.key)
        for number, ask in self._open.items():
            if ask.key not in needed and not ask.is_forgotten:
                ask.is_forgotten = True
                self._encoders.send(ask.encoder, ForgetImage(number, self._encoders.engine))

    def follow_encoders(self) -> None:
        """Moves the asks of encoders that have ended for good to others, and finds out which messages were lost.

        A gap in the frames does not show that the latest ones are missing, and nothing else may be sent after them.
        """
        found = self._encoders.look()
        for encoder in () if found is None else self._known.keys() - found:
            del self._known[encoder]
            self._take_back(encoder)
        for encoder in found or ():
            asks = tuple(number for number, ask in self._open.items() if ask.encoder == encoder)
            if asks:
                self._encoders.send(encoder, OpenAsks(self._encoders.engine, asks))
            elif self._orphans and encoder not in self._known:
                self._encoders.send(encoder, EngineStarted(self._encoders.engine))
        self._place_orphans()

    def _all(self) -> Iterable[Ask]:
        return (*self._open.values(), *self._orphans)

    def _take_back(self, encoder: str, suspect: bytes = b"") -> None:
        for number, ask in list(self._open.items()):
            if ask.encoder == encoder:
                del self._open[number]
                self._repeat(ask, is_at_fault=bool(suspect) and ask.image.encoding_digest() == suspect)

    def _repeat(self, ask: Ask, *, is_at_fault: bool) -> None:
        self._faults[ask.key] += is_at_fault
        if self._faults[ask.key] >= MAX_DEATHS:
            del self._faults[ask.key]
            self._rows.drop(ask.key)
            text = f"An image could not be encoded: {MAX_DEATHS} attempts ended with the death of the encoder"
            log.error("%s (digest %s)", text, ask.image.digest.hex())
            self.failed[ask.key] = ErrorInfo(500, text, "server_error", ask.image.param)
        elif ask.is_forgotten:
            self._rows.drop(ask.key)
        else:
            self._orphans.append(ask)

    def _place_orphans(self) -> None:
        while self._orphans and self._known:
            encoder = min(self._known, key=self._known.__getitem__)
            if self._known[encoder] >= MAX_ASKS:
                return
            ask = self._orphans.pop(0)
            number = self._rows.begin(ask.key)
            ask.encoder = encoder
            self._open[number] = ask
            self._known[encoder] += 1
            places, engine = pack_int32(ask.places), self._encoders.engine
            self._encoders.send(encoder, EncodeImage(number, engine, ask.image, ask.num_images, places))
