"""The answer of a chat as consecutive blocks (text, reasoning, tool calls), and the events that build them."""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal, NamedTuple

from frontend.parsing.custom_input import InputReader
from frontend.parsing.deltas import CallArguments, CallBroken, CallStart, Content, Delta, Deltas, Reasoning
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format
from frontend.requests.generation import Generation, Increment
from messages.ring.replies import PositionLogprobs, UserReply

BlockKind = Literal["text", "reasoning", "call"]


class AnswerRules(NamedTuple):
    """How the choices of a chat are parsed.

    `schemas`: the schemas of the tools' parameters, by tool name. `thought_mark`: the mark that begins reasoning, which
    the prompt may have written. `begun`: the message that the answer continues.
    `new_call_id`: makes the id of a call from the tool's name and the call's position in the answer.
    `max_calls`: further calls are dropped. `custom`: tools whose arguments are shown as plain text.
    """

    format: Format
    schemas: dict[str, Any]
    new_call_id: Callable[[str, int], str]
    shows_reasoning: bool = True
    thought_mark: str = ""
    begun: str = ""
    custom: Collection[str] = ()
    max_calls: float = math.inf


class Block:
    """Block `index` of its answer. A call has a name and, as text, its arguments: JSON if the model wrote JSON."""

    def __init__(self, kind: BlockKind, index: int, name: str = "", call_id: str = "", call_index: int = 0):
        self.kind: BlockKind = kind
        self.index = index
        self.name = name
        self.call_id = call_id
        self.call_index = call_index
        """The position of a call among the calls of its answer."""
        self.pieces: list[str] = []
        self.logprobs: list[PositionLogprobs] = []
        """The log-probabilities of a text's tokens, if they are kept."""
        self.has_ended = False
        self.is_cut = False
        """The answer was cut off in this block, or the block is a malformed call."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class NewBlock(NamedTuple):
    block: Block


class BlockText(NamedTuple):
    block: Block
    text: str
    logprobs: list[PositionLogprobs]


class BlockEnd(NamedTuple):
    block: Block


BlockEvent = NewBlock | BlockText | BlockEnd


class AnswerBlocks:
    """Parses one choice into blocks. When an event is yielded, its block is as it was at that event.

    A block ends when the next one begins, the last one with the answer. Without `rules` all text is content. A stream
    shows a call as it is written; otherwise a call is shown only if it is complete.
    """

    def __init__(self, generation: Generation, rules: AnswerRules | None, *, keeps_logprobs: bool = False):
        self.generation = generation
        self.rules = rules
        self.blocks: list[Block] = []
        self.num_reasoning_tokens = 0
        self.is_cut_in_call = False
        """The answer was cut off within a call."""
        self.token_ids: list[int] = []
        """The tokens of the latest step."""
        self.logprobs: list[PositionLogprobs] = []
        """The log-probabilities of these tokens, if requested."""
        self._keeps_logprobs = keeps_logprobs
        self._new_logprobs: list[PositionLogprobs] = []
        """The log-probabilities of tokens whose text is still held back."""
        self._deltas = Deltas(is_streamed=generation.is_streamed, custom=() if rules is None else rules.custom)
        self._parser: ResponseParser | None = None
        self._has_shown_broken = False
        self._input: InputReader | None = None
        """The reader of the latest call's arguments, if the call is to a custom tool."""

    @property
    def has_calls(self) -> bool:
        """True if the answer makes calls and all of them are complete."""
        return self._deltas.num_calls > 0 and not self._has_shown_broken

    def take_steps(self) -> Iterator[BlockEvent]:
        """Parses all steps that have arrived, each after the events of the previous one have been used."""
        while self.generation.has_step:
            yield from self.take_step()

    def take_step(self) -> Iterator[BlockEvent]:
        """Parses the oldest step and yields its events; there may be none."""
        return self._read(self.generation.pop_step(), None)

    def finish(self, final: UserReply) -> Iterator[BlockEvent]:
        """Parses the rest of the choice, which has ended with `final`, step by step."""
        yield from self.take_steps()
        yield from self.take_rest(final)

    def take_rest(self, final: UserReply) -> Iterator[BlockEvent]:
        """Same as `finish`, but takes the remaining steps as one."""
        if final.error is None:
            yield from self._read(self.generation.pop_all(), final)
        if self.blocks and (final.finish_reason != "stop" or self.is_cut_in_call):
            self.blocks[-1].is_cut = True
        yield from self._end_last()

    def read_whole(self) -> UserReply:
        """Parses the whole choice, which has ended, and returns its final reply."""
        final = self.generation.ended
        for _ in self.finish(final):
            pass
        return final

    def _read(self, step: Increment, final: UserReply | None) -> Iterator[BlockEvent]:
        self.token_ids = step.token_ids
        self.logprobs = self.generation.pop_logprobs(len(step.token_ids))
        if self._keeps_logprobs:
            self._new_logprobs += self.logprobs
        for delta in self._parse(step.text, final):
            yield from self._add(delta)
        if self.blocks and self.blocks[-1].kind == "reasoning":
            self.num_reasoning_tokens += len(step.token_ids)

    def _parse(self, text: str, final: UserReply | None) -> list[Delta]:
        if self.rules is None:
            return [Content(text)] if text else []
        if not text and final is None:
            return []
        if self._parser is None:  # with the first text: by then it is known whether the prompt has opened a thought
            rules, prompt = self.rules, self.generation.prompt
            begins_in_thought = prompt is not None and prompt.begins_in_thought
            begun = rules.begun or (rules.thought_mark if begins_in_thought else "")
            self._parser = ResponseParser(rules.format, rules.schemas, begun, self._deltas)
        deltas = self._parser.feed(text)
        if final is None:
            return deltas
        is_cut = final.finish_reason != "stop" or isinstance(final.stop_reason, str)
        num_broken = self._deltas.num_broken
        deltas += self._parser.finish(is_cut=is_cut)
        self.is_cut_in_call = is_cut and self._deltas.num_broken > num_broken
        return deltas

    def _add(self, delta: Delta) -> Iterator[BlockEvent]:
        if isinstance(delta, Content):
            yield from self._grow("text", delta.text)
            return
        rules = self.rules
        assert rules is not None
        match delta:
            case Reasoning(text):
                if rules.shows_reasoning:
                    yield from self._grow("reasoning", text)
            case CallStart() | CallArguments() | CallBroken() if delta.call_index >= rules.max_calls:
                pass
            case CallStart(call_index, name):
                self._input = InputReader() if name in rules.custom else None
                yield from self._begin("call", name, rules.new_call_id(name, call_index), call_index)
            case CallArguments(_, text):
                shown = text if self._input is None else self._input.feed(text)
                if shown:
                    yield from self._grow("call", shown)
            case CallBroken():
                self._has_shown_broken = True
                self.blocks[-1].is_cut = True

    def _grow(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not self.blocks or self.blocks[-1].kind != kind:
            yield from self._begin(kind)
        block = self.blocks[-1]
        logprobs, self._new_logprobs = self._new_logprobs if kind == "text" else [], []
        block.pieces.append(text)
        block.logprobs += logprobs
        yield BlockText(block, text, logprobs)

    def _begin(self, kind: BlockKind, name: str = "", call_id: str = "", call_index: int = 0) -> Iterator[BlockEvent]:
        yield from self._end_last()
        self.blocks.append(Block(kind, len(self.blocks), name, call_id, call_index))
        yield NewBlock(self.blocks[-1])

    def _end_last(self) -> Iterator[BlockEvent]:
        if self.blocks and not self.blocks[-1].has_ended:
            self.blocks[-1].has_ended = True
            yield BlockEnd(self.blocks[-1])
