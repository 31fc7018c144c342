"""The replies of `/v1/completions`: choices, whole or partial, and the objects that contain them."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.logprob_fields import CompletionLogprobs, PromptLogprobs, mean_logprob, prompt_logprobs
from frontend.api.openai.body import ReplyView
from frontend.api.openai.usage import UsageReply, prompt_ids_of, usage_of
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import FinishReason, UserReply


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The last fields are present if requested; `token_ids` are those of the output."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply or a chunk of a stream. Chunks have `usage`, which may be null, if it was requested."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: Sequence[CompletionChoice]
    usage: UsageReply | UnsetType | None = UNSET


class CompletionView(ReplyView, frozen=True, kw_only=True):
    """What a client requests of its completions: `num_shown` of the `num_choices` choices of each prompt."""

    num_shown: int
    num_choices: int
    has_echo: bool

    def whole(self, generations: Sequence[Generation]) -> Completion:
        """Takes the output of `generations`, which have ended, and returns the reply."""
        choices = [
            self.take_choice(generation, index, generation.final, is_first=True)
            for index, generation in enumerate(self._shown(generations))
        ]
        return self.completion(choices, usage_of(generations, self.num_choices))

    def completion(
        self, choices: Sequence[CompletionChoice], usage: UsageReply | UnsetType | None = UNSET
    ) -> Completion:
        return Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)

    def take_choice(
        self, generation: Generation, index: int, final: UserReply | None, *, is_first: bool
    ) -> CompletionChoice:
        """Takes one step, or with `final` the remaining output, and returns it.

        The first part of a choice (`is_first`) also contains the requested data about the prompt.
        """
        text, token_ids = generation.pop_step() if final is None else generation.pop_all()
        echoed = prompt_text(generation) if self.has_echo else ""
        prompt_ids = prompt_ids_of(generation) if is_first and self.has_token_ids else UNSET
        return CompletionChoice(
            index=index,
            text=echoed + text if is_first else text,
            logprobs=self._logprobs(generation, len(token_ids), len(echoed), is_first) if self.has_logprobs else None,
            finish_reason=None if final is None else final.finish_reason,
            stop_reason=None if final is None else final.stop_reason,
            token_ids=token_ids if self.has_token_ids else UNSET,
            prompt_token_ids=prompt_ids,
            prompt_logprobs=prompt_logprobs(generation.prompt) if self.has_prompt_logprobs else UNSET,
        )

    def _logprobs(self, generation: Generation, num_tokens: int, num_echoed: int, is_first: bool) -> CompletionLogprobs:
        """Takes the columns of `num_tokens` tokens and returns them, after those of the prompt if that is echoed."""
        output = self.names.completion(generation.pop_logprobs(num_tokens), num_echoed)
        if not (is_first and self.has_echo and generation.prompt is not None):
            return output
        prompt = self.names.completion(generation.prompt.tokens, 0)
        return CompletionLogprobs(
            prompt.tokens + output.tokens,
            prompt.token_logprobs + output.token_logprobs,
            prompt.top_logprobs + output.top_logprobs,
            prompt.text_offset + output.text_offset,
        )

    def _shown(self, generations: Sequence[Generation]) -> list[Generation]:
        """Returns the choices to show, in order: if there are more, the most likely ones of each prompt, ranked."""
        if self.num_shown == self.num_choices:
            return list(generations)
        shown: list[Generation] = []
        for first in range(0, len(generations), self.num_choices):
            of_prompt = generations[first : first + self.num_choices]
            ranked = sorted(of_prompt, key=lambda generation: -mean_logprob(generation.logprobs))
            shown += ranked[: self.num_shown]
        return shown


def prompt_text(generation: Generation) -> str:
    """Returns the text of the prompt: as sent, or decoded if the client sent ids or had the prompt truncated."""
    message = generation.message
    if message.prompt_text is not None and message.truncation is None:
        return message.prompt_text
    return "" if generation.prompt is None else generation.prompt.text


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
