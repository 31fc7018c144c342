"""The events of a streamed response, in OpenAI's order; the first has sequence number 0."""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from frontend.api.answers.answer_blocks import Block, BlockEnd, BlockEvent, BlockText, NewBlock
from frontend.api.answers.block_events import BlockEvents
from frontend.api.answers.logprob_fields import ChatLogprob
from frontend.api.responses.reply import OutputItem, OutputPart, Response, ResponseAnswer, failed
from frontend.http import sse
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int


class ResponseEvent(StreamEvent, frozen=True, kw_only=True):
    response: Response


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    pass


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    pass


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    pass


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The response ended early; its status is incomplete or cancelled."""


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    pass


class ItemEvent(StreamEvent, frozen=True, kw_only=True):
    output_index: int


class OutputItemAdded(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: OutputItem


class OutputItemDone(ItemEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: OutputItem


class ItemTextEvent(ItemEvent, frozen=True, kw_only=True):
    item_id: str


class PartEvent(ItemTextEvent, frozen=True, kw_only=True):
    content_index: int = 0


class ContentPartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: OutputPart


class ContentPartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: OutputPart


class OutputTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ChatLogprob]


class OutputTextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ChatLogprob]


class ReasoningTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ItemTextEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemTextEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(ItemTextEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(ItemTextEvent, frozen=True, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


EVENTS: tuple[type[StreamEvent], ...] = (
    *(ResponseCreated, ResponseInProgress, ResponseCompleted, ResponseIncomplete, ResponseFailed, OutputItemAdded),
    *(OutputItemDone, ContentPartAdded, ContentPartDone, OutputTextDelta, OutputTextDone, ReasoningTextDelta),
    *(ReasoningTextDone, ArgumentsDelta, ArgumentsDone, CustomInputDelta, CustomInputDone),
)


class ResponseEvents(BlockEvents):
    """Makes the frames of one response, one per event: frame n has sequence number n.

    `on_end` is called with the response if it ends without an error.
    """

    def __init__(self, answer: ResponseAnswer, on_end: Callable[[Response], object] = bool):
        super().__init__(answer.blocks)
        self._answer = answer
        self._on_end = on_end
        self._num_events = 0

    def begin(self) -> Iterator[bytes]:
        if self._num_events == 0:
            yield self._frame(ResponseCreated, response=self._answer.so_far())
            yield self._frame(ResponseInProgress, response=self._answer.so_far())

    def write(self, events: Iterable[BlockEvent]) -> Iterator[bytes]:
        for event in events:
            match event:
                case NewBlock(block):
                    yield from self._added(block)
                case BlockText(block):
                    yield self._delta(event)
                case BlockEnd(block):
                    yield from self._done(block)

    def finish(self, final: UserReply) -> Iterator[bytes]:
        response = self._answer.ended(final)
        self._on_end(response)
        yield self.last_frame(response)

    def last_frame(self, response: Response) -> bytes:
        kinds = {"completed": ResponseCompleted, "failed": ResponseFailed}
        return self._frame(kinds.get(response.status, ResponseIncomplete), response=response)

    def fail(self, error: ErrorInfo) -> bytes:
        return b"".join([*self.begin(), self.last_frame(failed(self._answer.so_far(), error))])

    def _added(self, block: Block) -> Iterator[bytes]:
        item = self._answer.item(block)
        yield self._frame(OutputItemAdded, output_index=block.index, item=item)
        if block.kind != "call":
            yield self._of(block, ContentPartAdded, part=self._answer.part(block))

    def _delta(self, grew: BlockText) -> bytes:
        block, text = grew.block, grew.text
        match block.kind:
            case "text":
                return self._of(block, OutputTextDelta, delta=text, logprobs=self._answer.logprobs(grew.logprobs))
            case "reasoning":
                return self._of(block, ReasoningTextDelta, delta=text)
            case "call":
                kind = CustomInputDelta if self._answer.is_custom(block) else ArgumentsDelta
                return self._of(block, kind, delta=text)

    def _done(self, block: Block) -> Iterator[bytes]:
        match block.kind:
            case "text":
                logprobs = self._answer.logprobs(block.logprobs)
                yield self._of(block, OutputTextDone, text=block.text, logprobs=logprobs)
            case "reasoning":
                yield self._of(block, ReasoningTextDone, text=block.text)
            case "call" if self._answer.is_custom(block):
                yield self._of(block, CustomInputDone, input=block.text)
            case "call":
                name = self._answer.tool_name(block).name
                yield self._of(block, ArgumentsDone, name=name, arguments=block.text)
        if block.kind != "call":
            yield self._of(block, ContentPartDone, part=self._answer.part(block))
        yield self._frame(OutputItemDone, output_index=block.index, item=self._answer.item(block))

    def _of(self, block: Block, kind: type[ItemTextEvent], **fields: object) -> bytes:
        return self._frame(kind, output_index=block.index, item_id=self._answer.item_id(block), **fields)

    def _frame(self, kind: type[StreamEvent], **fields: object) -> bytes:
        event = kind(sequence_number=self._num_events, **fields)
        self._num_events += 1
        return sse.named_frame(str(kind.__struct_config__.tag), event)
