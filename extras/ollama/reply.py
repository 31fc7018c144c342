"""The replies of `/api/chat` and `/api/generate`: a line of JSON per step, or one object."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from extras.ollama.errors import ollama_error
from frontend.api.answers.answer_blocks import AnswerBlocks, BlockEnd, BlockEvent, BlockText
from frontend.api.answers.logprob_fields import ChatLogprob, TokenNames
from frontend.http.stream import EventWriter
from frontend.parsing.argument_json import read_arguments
from frontend.requests.generation import Generation
from messages.errors import ErrorInfo
from messages.ring.replies import UserReply

DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaFunction(msgspec.Struct, frozen=True):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(msgspec.Struct, frozen=True):
    id: str
    function: OllamaFunction


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a stream. The last one has `done` true and the fields after it; spans are whole nanoseconds."""

    model: str
    created_at: str
    done: bool = False
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[ChatLogprob] | UnsetType = UNSET


class ChatLine(Line, frozen=True, kw_only=True):
    message: AnswerMessage


class PromptLine(Line, frozen=True, kw_only=True):
    response: str
    thinking: str | UnsetType = UNSET


class Piece(NamedTuple):
    """What one line adds to an answer."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[OllamaCall] = ()


Render = Callable[[Piece, dict[str, Any]], Line]


def chat_line(piece: Piece, fields: dict[str, Any]) -> ChatLine:
    calls = list(piece.calls) or UNSET
    message = AnswerMessage(content=piece.text, thinking=piece.thinking or UNSET, tool_calls=calls)
    return ChatLine(message=message, **fields)


def prompt_line(piece: Piece, fields: dict[str, Any]) -> PromptLine:
    return PromptLine(response=piece.text, thinking=piece.thinking or UNSET, **fields)


class Answer(NamedTuple):
    """An answer under the name of the model that the client used. `load_ns`: the time that it waited for the load."""

    model: str
    blocks: AnswerBlocks
    render: Render
    load_ns: int

    def line(self, piece: Piece, **fields: Any) -> Line:
        return self.render(piece, {"model": self.model, "created_at": now(), **fields})

    def whole(self) -> Line:
        """Parses the choice, which has ended, and returns all of it with its spans."""
        final = self.blocks.generation.ended
        piece = _gather(self.blocks.take_rest(final))
        return self.line(piece, logprobs=self.logprobs, **self.end(final))

    @property
    def logprobs(self) -> list[ChatLogprob] | UnsetType:
        """The log-probabilities of the tokens that were taken last, if requested."""
        return TokenNames().chat(self.blocks.logprobs).content or UNSET

    def end(self, final: UserReply) -> dict[str, Any]:
        """Returns the fields of the last line."""
        stamps, usage = final.stamps, final.usage
        return {
            "done": True,
            "done_reason": "stop" if final.finish_reason == "stop" else "length",
            "total_duration": time.monotonic_ns() - stamps.received_ns + self.load_ns,
            "load_duration": self.load_ns,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _span(stamps.first_scheduled_ns, stamps.first_token_ns),
            "eval_count": usage.completion_tokens,
            "eval_duration": _span(stamps.first_token_ns, stamps.finished_ns),
        }


class AnswerLines(EventWriter):
    """Streams an answer as lines of JSON, of which there is at least one.

    None is sent during a silence: clients take each for a part of the answer.
    """

    content_type: ClassVar[bytes] = b"application/x-ndjson"
    keep_alive: ClassVar[bytes] = b""
    splits_lines: ClassVar[bool] = True

    def __init__(self, answer: Answer):
        self._answer = answer

    def tokens(self, generation: Generation) -> bytes:
        """Takes all steps that have arrived: a line for each could come late."""
        events: list[BlockEvent] = []
        logprobs: list[ChatLogprob] = []
        while generation.has_step:
            events += self._answer.blocks.take_step()
            logprobs += self._answer.logprobs or ()
        return self._piece(events, logprobs or UNSET)

    def end(self, generation: Generation, final: UserReply) -> bytes:
        rest = [*self._answer.blocks.finish(final)]
        return self._piece(rest, self._answer.logprobs) + json_line(
            self._answer.line(Piece(), **self._answer.end(final))
        )

    def close(self) -> bytes:
        return b""

    def fail(self, error: ErrorInfo) -> bytes:
        return json_line(ollama_error(error))

    def _piece(self, events: Iterable[BlockEvent], logprobs: list[ChatLogprob] | UnsetType) -> bytes:
        piece = _gather(events)
        return json_line(self._answer.line(piece, logprobs=logprobs)) if any(piece) or logprobs else b""


def json_line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def now() -> str:
    """Returns the time as clients parse it: RFC 3339, in UTC."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanoseconds // 1000:06d}Z"


def _span(begin_ns: int, end_ns: int) -> int:
    return max(0, end_ns - begin_ns) if begin_ns and end_ns else 0


def _gather(events: Iterable[BlockEvent]) -> Piece:
    """Returns what the events add; a call is added when it is complete."""
    texts: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: list[OllamaCall] = []
    for event in events:
        match event:
            case BlockText(block, text) if block.kind != "call":
                texts[block.kind].append(text)
            case BlockEnd(block) if block.kind == "call" and not block.is_cut:
                function = OllamaFunction(block.call_index, block.name, read_arguments(block.text))
                calls.append(OllamaCall(block.call_id, function))
            case _:
                pass
    return Piece("".join(texts["text"]), "".join(texts["reasoning"]), calls)
