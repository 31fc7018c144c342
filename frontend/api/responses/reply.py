"""The response object and its items, both in progress and complete."""

import time
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from frontend.api.answers.answer_blocks import AnswerBlocks, Block
from frontend.api.answers.logprob_fields import ChatLogprob, TokenNames
from frontend.api.responses.body import LOGPROBS, REASONING, ReasoningOptions, ResponseBody, TextOptions
from frontend.api.responses.items import new_id, output_id, pack_reasoning
from frontend.api.responses.tools import ResponseChoice, ResponseTool, ToolName, named_tools
from messages.errors import ErrorInfo
from messages.ring.replies import FinishReason, PositionLogprobs, Usage, UserReply

Status = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

STATUSES: dict[FinishReason, tuple[Status, str]] = {
    "stop": ("completed", ""),
    "length": ("incomplete", "max_output_tokens"),
    "timeout": ("incomplete", "timeout"),
    "abort": ("cancelled", ""),
    "error": ("failed", ""),
}
"""The status and, for an incomplete response, the reason."""

ECHOED = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("safety_identifier", "user"),
)
"""Fields of the body that the response repeats."""


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: list[ChatLogprob] = []


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


OutputPart = OutputText | ReasoningText


class OutputMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: Sequence[OutputText] = ()
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """`encrypted_content` is the text in an encoded form, for clients that keep only this field."""

    id: str
    status: ItemStatus
    content: Sequence[ReasoningText] = ()
    encrypted_content: str | UnsetType = UNSET
    summary: tuple[()] = ()


class CallItem(msgspec.Struct, frozen=True, tag_field="type"):
    id: str
    status: ItemStatus
    call_id: str
    name: str


class FunctionCall(CallItem, frozen=True, tag="function_call"):
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomToolCall(CallItem, frozen=True, tag="custom_tool_call"):
    input: str
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    image_tokens: int | UnsetType = UNSET
    """Absent for a prompt without images."""


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """`reasoning_tokens`: tokens generated while the answer was in a reasoning block."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the request, and its options. `usage` is null until the response has ended."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    completed_at: int | None = None
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningOptions
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: TextOptions
    tool_choice: str | ResponseChoice
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None


class ResponseAnswer:
    """The current state of a response to `body`. `blocks`: its output. `model`: the name that the client used."""

    def __init__(self, body: ResponseBody, model: str, blocks: AnswerBlocks, *, is_stored: bool):
        self.blocks = blocks
        self._shows_logprobs = body.includes(LOGPROBS) or bool(body.top_logprobs)
        self._packs_reasoning = body.includes(REASONING)
        self._tools = {name.of_model: (name, tool.type) for name, tool in named_tools(body.tools or ())}
        params = blocks.generation.message.sampling_params
        self._begun = Response(
            id=new_id("resp"),
            created_at=int(time.time()),
            background=bool(body.background),
            metadata=body.metadata or {},
            model=model,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=body.reasoning or ReasoningOptions(),
            store=is_stored,
            temperature=params.temperature,
            text=body.text or TextOptions(),
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=params.top_p,
            truncation=body.truncation or "disabled",
            **{name: getattr(body, name) for name in ECHOED},
        )

    @property
    def id(self) -> str:
        return self._begun.id

    def so_far(self) -> Response:
        return msgspec.structs.replace(self._begun, output=self._output())

    def ended(self, final: UserReply) -> Response:
        """Returns the finished response, after its last block has ended. `final` may be an error."""
        status, reason = STATUSES[final.finish_reason]
        if status == "completed" and self.blocks.is_cut_in_call:
            status, reason = "incomplete", "stop_sequence"
        return msgspec.structs.replace(
            self._begun,
            status=status,
            completed_at=int(time.time()) if status == "completed" else None,
            error=None if final.error is None else _error_of(final.error),
            incomplete_details=IncompleteDetails(reason) if reason else None,
            output=self._output(),
            usage=None if final.error is not None else self._usage(final.usage),
        )

    def item(self, block: Block) -> OutputItem:
        """Returns a block as an item, without its text until the block has ended."""
        item_id = self.item_id(block)
        status: ItemStatus = "incomplete" if block.is_cut else "completed" if block.has_ended else "in_progress"
        match block.kind:
            case "text":
                return OutputMessage(item_id, status, [self._text(block)] if block.has_ended else ())
            case "reasoning":
                packed = pack_reasoning(block.text) if self._packs_reasoning and block.has_ended else UNSET
                return ReasoningItem(item_id, status, [ReasoningText(block.text)] if block.has_ended else (), packed)
            case "call":
                name, text = self.tool_name(block), block.text if block.has_ended else ""
                kind = CustomToolCall if self.is_custom(block) else FunctionCall
                return kind(item_id, status, block.call_id, name.name, text, name.namespace or UNSET)

    def item_id(self, block: Block) -> str:
        prefix = {"text": "msg", "reasoning": "rs", "call": "ctc" if self.is_custom(block) else "fc"}[block.kind]
        return output_id(prefix, self.id, block.index)

    def tool_name(self, block: Block) -> ToolName:
        return self._tools[block.name][0] if block.name in self._tools else ToolName(block.name)

    def is_custom(self, block: Block) -> bool:
        return block.name in self._tools and self._tools[block.name][1] == "custom"

    def part(self, block: Block) -> OutputPart:
        """Returns the content part of a text or reasoning block."""
        return self._text(block) if block.kind == "text" else ReasoningText(block.text)

    def logprobs(self, positions: Sequence[PositionLogprobs]) -> list[ChatLogprob]:
        return TokenNames().chat(positions).content if self._shows_logprobs else []

    def _text(self, block: Block) -> OutputText:
        return OutputText(block.text, logprobs=self.logprobs(block.logprobs))

    def _output(self) -> list[OutputItem]:
        return [self.item(block) for block in self.blocks.blocks]

    def _usage(self, usage: Usage) -> ResponseUsage:
        return ResponseUsage(
            usage.prompt_tokens,
            InputTokensDetails(usage.cached_tokens, image_tokens=usage.image_tokens or UNSET),
            usage.completion_tokens,
            OutputTokensDetails(self.blocks.num_reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


def _error_of(info: ErrorInfo) -> ResponseError:
    return ResponseError("server_error" if info.status >= 500 else "invalid_prompt", info.message)


def failed(response: Response, info: ErrorInfo) -> Response:
    """Returns the response with status failed."""
    return msgspec.structs.replace(response, status="failed", error=_error_of(info))
