"""An answer as blocks that follow each other (text, reasoning, calls of tools), and what happens to them."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from frontend.api.answers.answer_reader import AnswerReader, AnswerRules
from frontend.parsing.deltas import CallArguments, CallBroken, CallStart, Content, Delta, Reasoning
from frontend.requests.generation import Generation, Increment
from messages.ring.replies import PositionLogprobs, UserReply

BlockKind = Literal["text", "reasoning", "call"]


class Block:
    """Number `index` of its answer. A call has a name and, as text, its arguments: JSON, if the model wrote JSON."""

    def __init__(self, kind: BlockKind, index: int, name: str = "", call_id: str = ""):
        self.kind: BlockKind = kind
        self.index = index
        self.name = name
        self.call_id = call_id
        self.text = ""
        self.logprobs: list[PositionLogprobs] = []
        """The log-probabilities of a text's tokens, if requested."""
        self.has_ended = False
        self.is_cut = False
        """The answer was cut off in this block, or the block is a malformed call."""


class Began(NamedTuple):
    block: Block


class Grew(NamedTuple):
    block: Block
    text: str
    logprobs: list[PositionLogprobs]


class Ended(NamedTuple):
    block: Block


BlockEvent = Began | Grew | Ended


class AnswerBlocks:
    """Reads one choice: each block is as it was when the event that is yielded happened.

    A block ends where the next one begins, the last one with the answer.
    """

    def __init__(self, generation: Generation, rules: AnswerRules | None):
        self.generation = generation
        self._rules = rules
        self._reader = None if rules is None else AnswerReader(rules, generation)
        self.blocks: list[Block] = []
        self.num_reasoning_tokens = 0
        self._logprobs: list[PositionLogprobs] = []
        """Those of tokens whose text has not come."""

    @property
    def has_calls(self) -> bool:
        """True if the answer makes calls and all of them are complete."""
        return self._reader is not None and self._reader.has_calls

    @property
    def is_cut_in_call(self) -> bool:
        return self._reader is not None and self._reader.is_cut_in_call

    def take_steps(self) -> Iterator[BlockEvent]:
        """Takes all steps that have arrived, each when the events of those before it have been used."""
        while self.generation.has_step:
            yield from self.take_step()

    def take_step(self) -> Iterator[BlockEvent]:
        """Takes the oldest step and yields what it says; that may be nothing."""
        yield from self._read(self.generation.pop_step(), None)

    def finish(self, final: UserReply) -> Iterator[BlockEvent]:
        """Takes the rest of the choice, which has ended with `final`."""
        yield from self.take_steps()
        if final.error is None:
            yield from self._read(self.generation.pop_all(), final)
        if self.blocks and (final.finish_reason != "stop" or self.is_cut_in_call):
            self.blocks[-1].is_cut = True
        yield from self._end_last()

    def read_whole(self) -> UserReply:
        """Takes all of the choice, which has ended, and returns its end."""
        final = self.generation.ended
        for _ in self.finish(final):
            pass
        return final

    def _read(self, step: Increment, final: UserReply | None) -> Iterator[BlockEvent]:
        self._logprobs += self.generation.pop_logprobs(len(step.token_ids))
        for delta in self._deltas(step.text, final):
            yield from self._add(delta)
        if self.blocks and self.blocks[-1].kind == "reasoning":
            self.num_reasoning_tokens += len(step.token_ids)

    def _deltas(self, text: str, final: UserReply | None) -> list[Delta]:
        if self._reader is None:
            return [Content(text)] if text else []
        return self._reader.feed(text) + ([] if final is None else self._reader.finish(final))

    def _add(self, delta: Delta) -> Iterator[BlockEvent]:
        match delta:
            case Content(text):
                yield from self._grow("text", text)
            case Reasoning(text):
                yield from self._grow("reasoning", text)
            case CallStart(_, name):
                assert self._rules is not None
                yield from self._begin("call", name, self._rules.new_call_id())
            case CallArguments(_, text):
                yield from self._grow("call", text)
            case CallBroken():
                self.blocks[-1].is_cut = True

    def _grow(self, kind: BlockKind, text: str) -> Iterator[BlockEvent]:
        if not self.blocks or self.blocks[-1].kind != kind:
            yield from self._begin(kind)
        block = self.blocks[-1]
        logprobs, self._logprobs = self._logprobs if kind == "text" else [], []
        block.text += text
        block.logprobs += logprobs
        yield Grew(block, text, logprobs)

    def _begin(self, kind: BlockKind, name: str = "", call_id: str = "") -> Iterator[BlockEvent]:
        yield from self._end_last()
        self.blocks.append(Block(kind, len(self.blocks), name, call_id))
        yield Began(self.blocks[-1])

    def _end_last(self) -> Iterator[BlockEvent]:
        if self.blocks and not self.blocks[-1].has_ended:
            self.blocks[-1].has_ended = True
            yield Ended(self.blocks[-1])
