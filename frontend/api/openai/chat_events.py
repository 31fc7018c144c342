"""The chunks of a `/v1/chat/completions` stream."""

from collections.abc import Sequence

from msgspec import UNSET

from frontend.api.answers.answer_reader import AnswerReader
from frontend.api.openai.chat_answer import ChatDelta
from frontend.api.openai.chat_reply import ChatPiece, ChatView
from frontend.api.openai.usage import prompt_ids_of, usage_of
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import UserReply


class ChatEvents(EventWriter):
    """A chunk with the role at the beginning of each choice, then one for each step.

    Where answers are read, a step has a chunk for each thing that its text says, and none while that is not certain.
    Where a chunk has nothing but text, only that is encoded.
    """

    def __init__(self, view: ChatView, choices: Sequence[Generation]):
        self._view = view
        self._choices = choices
        self._began: set[int] = set()
        """Indices of choices that have had a chunk."""
        rules = view.rules
        self._readers = [] if rules is None else [AnswerReader(rules, generation) for generation in choices]
        self._forms = [self._form(index) for index in range(len(choices))] if view.is_plain and rules is None else []

    def tokens(self, generation: Generation) -> bytes:
        beginning = b"" if generation.index in self._began else self._begin(generation)
        if self._forms:
            return beginning + self._forms[generation.index].frame(generation.pop_step().text)
        return beginning + self._chunk(generation, None)

    def end(self, generation: Generation, final: UserReply) -> bytes:
        beginning = b"" if generation.index in self._began else self._begin(generation)
        return beginning + self._chunk(generation, final)

    def close(self) -> bytes:
        if not self._view.usage.is_included:
            return sse.DONE
        return sse.frame(self._view.chunk((), usage_of(self._choices, len(self._choices)))) + sse.DONE

    def _begin(self, generation: Generation) -> bytes:
        """Returns the chunk with the role and, where there is an echo, the one with the text that is continued."""
        self._began.add(generation.index)
        view = self._view
        piece = ChatPiece(index=generation.index, delta=ChatDelta("", view.role))
        prompt_ids = prompt_ids_of(generation) if view.has_token_ids else UNSET
        begun = sse.frame(view.chunk([piece], view.usage.so_far(generation), prompt_ids))
        if view.echoed:
            piece = ChatPiece(index=generation.index, delta=ChatDelta(view.echoed))
            begun += sse.frame(view.chunk([piece], view.usage.so_far(generation)))
        return begun

    def _chunk(self, generation: Generation, final: UserReply | None) -> bytes:
        if self._readers:
            pieces = self._view.take_pieces(generation, final, self._readers[generation.index])
        else:
            pieces = [self._view.take_piece(generation, final)]
        usage = self._view.usage.so_far(generation, is_last=final is not None)
        return b"".join([sse.frame(self._view.chunk([piece], usage)) for piece in pieces])

    def _form(self, index: int) -> sse.FrameForm:
        piece = ChatPiece(index=index, delta=ChatDelta(sse.FrameForm.MARK))
        return sse.FrameForm(self._view.chunk([piece], self._view.usage.unsaid))
