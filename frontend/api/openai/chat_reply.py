"""The replies of `/v1/chat/completions`: whole replies and the chunks of streams."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.answer_blocks import AnswerBlocks, BlockEvent, BlockText, NewBlock
from frontend.api.answers.logprob_fields import ChatLogprobs, PromptLogprobs, prompt_logprobs
from frontend.api.openai.body import ReplyView
from frontend.api.openai.usage import UsageReply, prompt_ids_of, usage_of
from frontend.http import sse
from frontend.http.stream import EventWriter
from frontend.requests.generation import Generation
from messages.ring.replies import FinishReason, UserReply


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct, frozen=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The first delta of a call has its id, type and name; later ones extend its arguments."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """The content of a chunk: the role in the first chunk of a choice, then text, reasoning (two names) or a call."""

    content: str | UnsetType = UNSET
    role: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    """In place of `tool_calls`, for a client that sends `functions`."""


class ChatAnswer(msgspec.Struct, frozen=True):
    """`reasoning` and `reasoning_content` are equal. They are present if the model's format has reasoning."""

    role: str
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


def chat_delta(event: BlockEvent) -> ChatDelta | None:
    """Returns the delta for an event, `None` if it adds nothing to the stream."""
    block = event.block
    match event:
        case NewBlock() if block.kind == "call":
            function = FunctionDelta("", block.name)
            return ChatDelta(tool_calls=[ToolCallDelta(block.call_index, function, block.call_id, "function")])
        case BlockText(_, text):
            match block.kind:
                case "text":
                    return ChatDelta(text)
                case "reasoning":
                    return ChatDelta(reasoning=text, reasoning_content=text)
                case "call":
                    return ChatDelta(tool_calls=[ToolCallDelta(block.call_index, FunctionDelta(text))])
        case _:
            return None


def make_answer(answer: AnswerBlocks, role: str, begun: str) -> ChatAnswer:
    """Returns the message that consists of all blocks; `begun` precedes its content."""
    rules, blocks = answer.rules, answer.blocks
    content = begun + "".join(block.text for block in blocks if block.kind == "text")
    reasoning = "".join(block.text for block in blocks if block.kind == "reasoning")
    calls = [ToolCall(each.call_id, CalledFunction(each.name, each.text)) for each in blocks if each.kind == "call"]
    has_reasoning = rules is not None and rules.format.has_reasoning and rules.shows_reasoning
    return ChatAnswer(
        role,
        content or (None if calls or reasoning else ""),
        reasoning=(reasoning or None) if has_reasoning else UNSET,
        reasoning_content=(reasoning or None) if has_reasoning else UNSET,
        tool_calls=calls or UNSET,
    )


ChatFinishReason = FinishReason | Literal["tool_calls", "function_call"]


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
    """The last fields are present if requested."""

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
    """`usage` is present, possibly null, if it was requested."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: Sequence[ChatPiece]
    usage: UsageReply | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatView(ReplyView, frozen=True, kw_only=True):
    """What a client requests of its chat. `echoed`: the continued message, which precedes the text.

    `has_functions`: a call has the form that it had before tools.
    """

    role: str
    echoed: str
    has_functions: bool = False

    def whole(self, answers: Sequence[AnswerBlocks]) -> ChatCompletion:
        """Takes the output of `answers`, which have ended, and returns the reply."""
        generations = [answer.generation for answer in answers]
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(answer) for answer in answers],
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

    def take_pieces(self, answer: AnswerBlocks, final: UserReply | None) -> list[ChatPiece]:
        """Takes one step, or with `final` the remaining output, and returns one piece per delta.

        The last piece has the step's tokens and, at the end, the finish reason. Before the end there may be no piece.
        """
        index = answer.generation.index
        events = answer.take_step() if final is None else answer.take_rest(final)
        deltas = [self._formed(delta) for delta in map(chat_delta, events) if delta is not None]
        if (final is not None and answer.rules is not None) or not (deltas or (final is None and self.is_plain)):
            deltas.append(ChatDelta("" if final is None and answer.rules is None else UNSET))
        if not deltas:
            return []
        last = ChatPiece(
            index=index,
            delta=deltas.pop(),
            logprobs=self._logprobs(answer),
            finish_reason=None if final is None else self._finish_reason(final, answer),
            stop_reason=UNSET if final is None else final.stop_reason,
            token_ids=answer.token_ids if self.has_token_ids else UNSET,
        )
        return [*[ChatPiece(index=index, delta=delta) for delta in deltas], last]

    def _choice(self, answer: AnswerBlocks) -> ChatChoice:
        final = answer.generation.ended
        for _ in answer.take_rest(final):
            pass
        return ChatChoice(
            index=answer.generation.index,
            message=self._message(answer),
            logprobs=self._logprobs(answer),
            finish_reason=self._finish_reason(final, answer),
            stop_reason=final.stop_reason,
            token_ids=answer.token_ids if self.has_token_ids else UNSET,
        )

    def _message(self, answer: AnswerBlocks) -> ChatAnswer:
        message = make_answer(answer, self.role, self.echoed)
        if not self.has_functions or not message.tool_calls:
            return message
        return msgspec.structs.replace(message, function_call=message.tool_calls[0].function, tool_calls=UNSET)

    def _formed(self, delta: ChatDelta) -> ChatDelta:
        if not self.has_functions or not delta.tool_calls:
            return delta
        return ChatDelta(function_call=delta.tool_calls[0].function)

    def _finish_reason(self, final: UserReply, answer: AnswerBlocks) -> ChatFinishReason:
        reason = _finish_reason(final, answer)
        return "function_call" if reason == "tool_calls" and self.has_functions else reason

    def _logprobs(self, answer: AnswerBlocks) -> ChatLogprobs | None:
        return self.names.chat(answer.logprobs) if self.has_logprobs else None


def _finish_reason(final: UserReply, answer: AnswerBlocks) -> ChatFinishReason:
    return "tool_calls" if answer.has_calls and final.finish_reason == "stop" else final.finish_reason


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
