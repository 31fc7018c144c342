"""The bodies of `/v1/chat/completions`: whole replies, and the chunks of streams."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.answer_reader import AnswerReader, AnswerRules
from frontend.api.answers.logprob_fields import ChatLogprobs, PromptLogprobs, prompt_logprobs
from frontend.api.openai.body import ReplyView
from frontend.api.openai.chat_answer import ChatAnswer, ChatDelta, chat_delta, make_answer
from frontend.api.openai.usage import UsageReply, prompt_ids_of, usage_of
from frontend.parsing.deltas import CallBroken
from frontend.requests.generation import Generation
from messages.ring.replies import FinishReason, UserReply

ChatFinishReason = FinishReason | Literal["tool_calls"]


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinishReason | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The last fields are there where they were asked for."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: Sequence[ChatChoice]
    usage: UsageReply
    service_tier: None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Has `usage`, null or not, where it was asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: Sequence[ChatPiece]
    usage: UsageReply | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatView(ReplyView, frozen=True, kw_only=True):
    """What a client wants to see of its chat. `echoed` comes before the text: the beginning that is continued.

    `rules` say how answers are read; without them all text is content.
    """

    role: str
    echoed: str
    rules: AnswerRules | None = None

    def whole(self, generations: Sequence[Generation]) -> ChatCompletion:
        """Takes all that has arrived for `generations`, which have ended, and returns the reply."""
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(generation) for generation in generations],
            usage=usage_of(generations, len(generations)),
            prompt_token_ids=prompt_ids_of(generations[0]) if self.has_token_ids else UNSET,
            prompt_logprobs=prompt_logprobs(generations[0].prompt) if self.has_prompt_logprobs else UNSET,
        )

    def chunk(
        self,
        pieces: Sequence[ChatPiece],
        usage: UsageReply | UnsetType | None,
        prompt_token_ids: list[int] | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=pieces,
            usage=usage,
            prompt_token_ids=prompt_token_ids,
        )

    def take_piece(self, generation: Generation, final: UserReply | None) -> ChatPiece:
        """Takes one step, or with `final` the rest, and returns it, then with how the choice ended."""
        text, token_ids = generation.pop_step() if final is None else generation.pop_all()
        return ChatPiece(
            index=generation.index,
            delta=ChatDelta(text) if text or final is None else ChatDelta(),
            logprobs=self._take_logprobs(generation, len(token_ids)),
            finish_reason=None if final is None else final.finish_reason,
            stop_reason=UNSET if final is None else final.stop_reason,
            token_ids=token_ids if self.has_token_ids else UNSET,
        )

    def take_pieces(self, generation: Generation, final: UserReply | None, reader: AnswerReader) -> list[ChatPiece]:
        """Does as `take_piece`, with a piece for each thing that the text says; there may be none before the end."""
        text, token_ids = generation.pop_step() if final is None else generation.pop_all()
        deltas = reader.feed(text) + (reader.finish(final) if final is not None else [])
        shown = [chat_delta(reader.rules, delta) for delta in deltas if not isinstance(delta, CallBroken)]
        pieces = [ChatPiece(index=generation.index, delta=delta) for delta in shown]
        if final is not None or not (self.is_plain or pieces):
            pieces.append(ChatPiece(index=generation.index, delta=ChatDelta()))
        if pieces:
            pieces[-1] = msgspec.structs.replace(
                pieces[-1],
                logprobs=self._take_logprobs(generation, len(token_ids)),
                finish_reason=None if final is None else _finish_reason(final, reader),
                stop_reason=UNSET if final is None else final.stop_reason,
                token_ids=token_ids if self.has_token_ids else UNSET,
            )
        return pieces

    def _choice(self, generation: Generation) -> ChatChoice:
        final = generation.ended
        text, token_ids = generation.pop_all()
        if self.rules is None:
            answer, finish_reason = ChatAnswer(self.role, self.echoed + text), final.finish_reason
        else:
            reader = AnswerReader(self.rules, generation)
            answer = make_answer(self.rules, self.role, self.echoed, reader.feed(text) + reader.finish(final))
            finish_reason = _finish_reason(final, reader)
        return ChatChoice(
            index=generation.index,
            message=answer,
            logprobs=self._take_logprobs(generation, len(token_ids)),
            finish_reason=finish_reason,
            stop_reason=final.stop_reason,
            token_ids=token_ids if self.has_token_ids else UNSET,
        )

    def _take_logprobs(self, generation: Generation, num_tokens: int) -> ChatLogprobs | None:
        return self.names.chat(generation.pop_logprobs(num_tokens)) if self.has_logprobs else None


def _finish_reason(final: UserReply, reader: AnswerReader) -> ChatFinishReason:
    return "tool_calls" if reader.has_calls and final.finish_reason == "stop" else final.finish_reason
