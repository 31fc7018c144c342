"""The chunks of a `/v1/chat/completions` stream."""

from collections.abc import Sequence

from msgspec import UNSET

from frontend.api.answers.answer_blocks import AnswerBlocks
from frontend.api.openai.chat_answer import ChatDelta
from frontend.api.openai.chat_reply import ChatPiece, ChatView
from frontend.api.openai.usage import prompt_ids_of, usage_of
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import UserReply


class ChatEvents(EventWriter):
    """A chunk with the role at the beginning of each choice, then one chunk per step.

    If answers are parsed, a step has one chunk per delta, and none while its text is ambiguous. If a chunk contains
    only text, only the text is encoded.
    """

    def __init__(self, view: ChatView, answers: Sequence[AnswerBlocks]):
        self._view = view
        self._answers = answers
        self._began: set[int] = set()
        """Indices of choices that have had a chunk."""
        is_plain = view.is_plain and answers[0].rules is None
        self._forms = [self._form(index) for index in range(len(answers))] if is_plain else []

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
        choices = [answer.generation for answer in self._answers]
        return sse.frame(self._view.chunk((), usage_of(choices, len(choices)))) + sse.DONE

    def _begin(self, generation: Generation) -> bytes:
        """Returns the chunk with the role and, with `echo`, the chunk with the message that is continued."""
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
        pieces = self._view.take_pieces(self._answers[generation.index], final)
        usage = self._view.usage.so_far(generation, is_last=final is not None)
        return b"".join([sse.frame(self._view.chunk([piece], usage)) for piece in pieces])

    def _form(self, index: int) -> sse.FrameForm:
        piece = ChatPiece(index=index, delta=ChatDelta(sse.FrameForm.MARK))
        return sse.FrameForm(self._view.chunk([piece], self._view.usage.unsaid))
