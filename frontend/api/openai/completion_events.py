"""The chunks of a `/v1/completions` stream."""

from collections.abc import Sequence

from frontend.api.openai.completion_reply import CompletionChoice, CompletionView
from frontend.api.openai.usage import usage_of
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import UserReply


class CompletionEvents(EventWriter):
    """One chunk per step of a choice. If a chunk contains only text, only the text is encoded."""

    def __init__(self, view: CompletionView, choices: Sequence[Generation]):
        self._view = view
        self._choices = choices
        self._began: set[int] = set()
        """Indices of choices that have had a chunk."""
        self._forms = [self._form(index) for index in range(len(choices))] if view.is_plain else []

    def tokens(self, generation: Generation) -> bytes:
        is_first = self._is_first(generation)
        if self._forms and not (is_first and self._view.has_echo):
            return self._forms[generation.index].frame(generation.pop_step().text)
        return self._chunk(generation, None, is_first=is_first)

    def end(self, generation: Generation, final: UserReply) -> bytes:
        return self._chunk(generation, final, is_first=self._is_first(generation))

    def close(self) -> bytes:
        if not self._view.usage.is_included:
            return sse.DONE
        return sse.frame(self._view.completion((), usage_of(self._choices, self._view.num_choices))) + sse.DONE

    def _is_first(self, generation: Generation) -> bool:
        if generation.index in self._began:
            return False
        self._began.add(generation.index)
        return True

    def _chunk(self, generation: Generation, final: UserReply | None, *, is_first: bool) -> bytes:
        choice = self._view.take_choice(generation, generation.index, final, is_first=is_first)
        usage = self._view.usage.so_far(generation, is_last=final is not None)
        return sse.frame(self._view.completion([choice], usage))

    def _form(self, index: int) -> sse.FrameForm:
        choice = CompletionChoice(index=index, text=sse.FrameForm.MARK)
        return sse.FrameForm(self._view.completion([choice], self._view.usage.unsaid))
