"""The events of an answer's blocks as a stream, for APIs that have an event for each."""

from collections.abc import Iterable, Iterator

from frontend.api.answers.answer_blocks import AnswerBlocks, BlockEvent
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import UserReply


class BlockEvents(EventWriter):
    """Writes the blocks of one answer. A subclass makes the frames."""

    def __init__(self, blocks: AnswerBlocks):
        self._blocks = blocks

    def begin(self) -> Iterator[bytes]:
        """Yields the first frames, once."""
        raise NotImplementedError

    def write(self, events: Iterable[BlockEvent]) -> Iterator[bytes]:
        """Yields the frames of events."""
        raise NotImplementedError

    def finish(self, final: UserReply) -> Iterator[bytes]:
        """Yields the frames after the last block."""
        raise NotImplementedError

    def tokens(self, generation: Generation) -> bytes:
        return b"".join([*self.begin(), *self.write(self._blocks.take_step())])

    def end(self, generation: Generation, final: UserReply) -> bytes:
        return b"".join([*self.begin(), *self.write(self._blocks.finish(final)), *self.finish(final)])

    def close(self) -> bytes:
        return b""
