"""The frontend's end of the ring: requests leave for the tokenizer, replies arrive for the registry."""

import logging

from frontend.registry import Registry
from messages.channels import MAX_QUEUED_FRAMES, Receiver, Sender
from messages.replies import ToFrontend
from messages.requests import ToTokenizer
from messages.run_dir import RunDir

log = logging.getLogger("sluice.frontend")


class Ring:
    def __init__(self, run_dir: RunDir, registry: Registry):
        self._registry = registry
        self._receiver: Receiver[ToFrontend] = Receiver(run_dir.socket("frontend"), ToFrontend)
        self._sender: Sender[ToTokenizer] = Sender(run_dir.socket("tokenizer"))

    def fileno(self) -> int:
        """The descriptor for the event loop; edge-triggered, so `take` empties the channel."""
        return self._receiver.fileno()

    def send(self, message: ToTokenizer) -> None:
        """Queues `message` for the tokenizer. Raises `ChannelFullError`."""
        self._sender.send(message)

    def take(self) -> None:
        """Gives all replies that have arrived to the registry. One that it cannot read costs only itself."""
        for message in self._receiver.take(limit=MAX_QUEUED_FRAMES):
            try:
                self._registry.take(message)
            except Exception:
                log.exception("dropped the rest of a %s that does not add up", type(message).__name__)

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()
