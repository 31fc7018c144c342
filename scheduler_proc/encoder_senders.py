"""The channels from a scheduler to the encoders."""

import time
from collections.abc import Callable, Collection
from typing import Any

from messages.channels import Sender
from messages.control.processes import ENCODER, kind_of
from messages.ring.encodings import EncodeImage, EngineStarted, ForgetImage, OpenAsks
from messages.ring.requests import ToEncoder
from runtime.run_dir import RunDir

LOOK_INTERVAL_S = 1.0


class EncoderSenders:
    """Senders to the encoders of the run, each opened with its first message, as engine number `engine`.

    The encoders that have started before this scheduler learn that it is here.
    """

    def __init__(
        self,
        engine: int,
        run_dir: RunDir,
        open_sender: Callable[[str], Sender[Any]],
        close_sender: Callable[[Sender[Any]], None],
    ):
        self.engine = engine
        self._open_sender, self._close_sender = open_sender, close_sender
        self._senders: dict[str, Sender[ToEncoder]] = {}
        self._due_s = 0.0
        self._find_sockets = run_dir.sockets
        for name in self._find_encoders():
            self.send(name, EngineStarted(engine))

    def send(self, encoder: str, message: EncodeImage | ForgetImage | OpenAsks | EngineStarted) -> None:
        """Sends `message` to an encoder. Drops it if that has stopped reading."""
        self._sender(encoder).send_or_drop(message)

    def look(self) -> Collection[str] | None:
        """Returns the encoders that have sockets, once a second; otherwise `None`."""
        if time.monotonic() < self._due_s:
            return None
        self._due_s = time.monotonic() + LOOK_INTERVAL_S
        found = self._find_encoders()
        for name in self._senders.keys() - found:
            self._close_sender(self._senders.pop(name))
        return found

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()

    def _find_encoders(self) -> set[str]:
        return {name for name in self._find_sockets() if kind_of(name) == ENCODER}

    def _sender(self, encoder: str) -> Sender[ToEncoder]:
        if encoder not in self._senders:
            self._senders[encoder] = self._open_sender(encoder)
        return self._senders[encoder]
