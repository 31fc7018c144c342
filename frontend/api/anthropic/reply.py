"""The replies of `/v1/messages`: the whole message, and the events of a stream."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Literal, get_args

import msgspec

from frontend.api.answers.answer_blocks import AnswerBlocks, Block, BlockEnd, BlockEvent, BlockKind, BlockText, NewBlock
from frontend.api.answers.block_events import BlockEvents
from frontend.api.anthropic.errors import anthropic_error
from frontend.http import sse
from frontend.parsing.argument_json import close_object, read_arguments
from messages.errors import ErrorInfo
from messages.ring.replies import Usage, UserReply

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """`signature` is a checksum of the text. Clients require one; it is not verified when they send it back."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True):
    """The prompt's tokens are the sum of `input_tokens` and `cache_read_input_tokens`."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class MessageReply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    message: MessageReply


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    partial_json: str


DELTAS: dict[BlockKind, Callable[[str], TextDelta | ThinkingDelta | InputDelta]] = {
    "text": TextDelta,
    "reasoning": ThinkingDelta,
    "call": InputDelta,
}


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    index: int


class StopFields(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    delta: StopFields
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    pass


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
EVENTS: tuple[type[msgspec.Struct], ...] = get_args(Event)


class MessageAnswer(msgspec.Struct, frozen=True):
    """An answer as a message. `model` is the name that the client used."""

    id: str
    model: str
    blocks: AnswerBlocks

    def whole(self) -> MessageReply:
        """Parses the choice, which has ended, and returns the message."""
        final = self.blocks.read_whole()
        content = [_block(block, block.text) for block in self.blocks.blocks]
        return self._reply(content, final.usage, **msgspec.structs.asdict(self.stop(final)))

    def begun(self) -> MessageReply:
        """Returns the message before its first block."""
        generation = self.blocks.generation
        usage = generation.prompt_usage or (generation.final.usage if generation.final else Usage())
        usage = msgspec.structs.replace(usage, completion_tokens=0)
        return self._reply([], usage, stop_reason=None, stop_sequence=None)

    def stop(self, final: UserReply) -> StopFields:
        """Returns why the message ends. Timeouts and aborts count as `max_tokens`."""
        num_tokens, params = final.usage.completion_tokens, self.blocks.generation.message.sampling_params
        if final.finish_reason == "length" and num_tokens < params.max_tokens:
            return StopFields("model_context_window_exceeded", None)
        if final.finish_reason != "stop":
            return StopFields("max_tokens", None)
        if self.blocks.has_calls:
            return StopFields("tool_use", None)
        if isinstance(final.stop_reason, str):
            return StopFields("stop_sequence", final.stop_reason)
        return StopFields("end_turn", None)

    def _reply(self, content: list[AnswerBlock], usage: Usage, **stop: Any) -> MessageReply:
        return MessageReply(id=self.id, model=self.model, content=content, usage=usage_of(usage), **stop)


def usage_of(usage: Usage) -> MessageUsage:
    return MessageUsage(usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens)


def _block(block: Block, text: str) -> AnswerBlock:
    """Returns the block with `text`: its complete text, or none when it has just begun."""
    match block.kind:
        case "text":
            return TextBlock(text)
        case "reasoning":
            return ThinkingBlock(text, _sign(text) if text else "")
        case "call":
            whole = close_object(text) if block.is_cut and text else text
            return ToolUseBlock(block.call_id, block.name, read_arguments(whole))


def _sign(thinking: str) -> str:
    return hashlib.blake2s(thinking.encode()).hexdigest()


class MessageEvents(BlockEvents):
    """Streams a message to its client."""

    keep_alive: ClassVar[bytes] = sse.named_frame("ping", Ping())

    def __init__(self, answer: MessageAnswer):
        super().__init__(answer.blocks)
        self._answer = answer
        self._has_begun = False

    def finish(self, final: UserReply) -> Iterator[bytes]:
        yield _frame(MessageDelta(self._answer.stop(final), usage_of(final.usage)))
        yield _frame(MessageStop())

    def fail(self, error: ErrorInfo) -> bytes:
        return sse.named_frame("error", anthropic_error(error))

    def begin(self) -> Iterator[bytes]:
        if not self._has_begun:
            self._has_begun = True
            yield _frame(MessageStart(self._answer.begun()))

    def write(self, events: Iterable[BlockEvent]) -> Iterator[bytes]:
        for event in events:
            index = event.block.index
            match event:
                case NewBlock(block):
                    yield _frame(BlockStart(index, _block(block, "")))
                case BlockText(block, text):
                    yield _frame(BlockDelta(index, DELTAS[block.kind](text)))
                case BlockEnd(block):
                    if block.kind == "reasoning":
                        yield _frame(BlockDelta(index, SignatureDelta(_sign(block.text))))
                    yield _frame(BlockStop(index))


def _frame(event: Event) -> bytes:
    return sse.named_frame(str(event.__struct_config__.tag), event)
