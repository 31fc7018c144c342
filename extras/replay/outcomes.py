"""The outcome of each attempt of a request, collected from the messages that a process sends about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from messages.columns import runs_of, unpack_float32, unpack_int32, unpack_int64
from messages.ring import replies
from messages.ring.plain import to_plain
from messages.ring.requests import UserMsg

Key = tuple[int, int]
"""uid and attempt."""

PromptResult = replies.PromptReply | replies.PromptLogprobs | replies.PooledReply | UserMsg

BY_REQUEST = ("abort", "timeout")
"""The reasons of ends that were requested."""


@dataclass
class Outcome:
    """`tokens` are those of the output, or those of the prompt if a tokenizer is replayed."""

    tokens: list[int] = field(default_factory=list[int])
    text: str = ""
    logprobs: list[float] = field(default_factory=list[float])
    prompt: tuple[Any, ...] = ()
    """The prompt's text, ids and parameters."""
    prompt_logprobs: list[float] = field(default_factory=list[float])
    pooled: list[float] = field(default_factory=list[float])
    """The numbers of a pooled prompt."""
    reason: str = ""
    """Empty while it has not ended."""
    stop_reason: str | int | None = None
    error: tuple[Any, ...] | None = None
    """The stable part of the error, for clients: the message of an internal error names the line of a log."""
    num_prompt_tokens: int = 0
    rows: list["Row"] = field(default_factory=list["Row"])

    def end(self, final: replies.UserReply | replies.FinishedRow) -> None:
        self.reason, self.stop_reason, error = final.finish_reason, final.stop_reason, final.error
        if error is not None:
            message = error.message if error.status < 500 else ""
            self.error = (error.status, error.type, error.param, error.code, message)
        self.num_prompt_tokens = final.usage.prompt_tokens
        self.rows.append(Row(len(self.tokens), final))

    def row_with(self, index: int) -> "Row | None":
        """Returns the message that brought token `index`, or else the last message; `None` if there was none."""
        return next((row for row in self.rows if row.num_tokens > index), self.rows[-1] if self.rows else None)


class Row(NamedTuple):
    """The part of a message about one request: the whole message, or one row of a step. `num_tokens` came with it."""

    num_tokens: int
    message: Any
    row: int | None = None

    def to_plain(self) -> dict[str, Any]:
        """Returns it decoded."""
        if self.row is None:
            return to_plain(self.message)
        step = self.message
        token_ids = list(runs_of(step.token_ids, step.num_tokens))[self.row]
        text = {"text": step.texts[self.row]} if isinstance(step, replies.StepReplies) else {}
        return {"type": type(step).__name__, "step_id": step.step_id, "token_ids": [*token_ids], **text}


class Outcomes:
    """`find` returns the outcome of an attempt, `None` for an attempt that does not count."""

    def __init__(self, find: Callable[[Key], Outcome | None]):
        self._find_counted = find

    def _find(self, key: Key) -> Outcome:
        """Returns the outcome of an attempt, a new one for an attempt that does not count."""
        return self._find_counted(key) or Outcome()

    def collect(self, message: Any) -> None:
        """Adds the requests' results in `message`, which may be from any process."""
        match message:
            case replies.StepReplies():
                self._collect_step(message)
            case replies.DetokenizeMsg():
                self._collect_tokens(message)
            case replies.UserReply():
                self._collect_final(message)
            case _:
                if isinstance(message, PromptResult):
                    self._collect_prompt(message)

    def _collect_step(self, step: replies.StepReplies) -> None:
        keys = self._add_rows(step, step.texts)
        for entry, logprob in zip(unpack_int32(step.logprob_entries), step.logprobs, strict=True):
            self._find(keys[entry]).logprobs += logprobs_of((logprob,))
        for final in step.finals:
            self._collect_final(final)

    def _collect_tokens(self, step: replies.DetokenizeMsg) -> None:
        keys = self._add_rows(step, [""] * len(unpack_int64(step.uids)))
        if step.logprobs is not None:
            values = unpack_float32(step.logprobs.logprobs)
            for entry, value in zip(unpack_int32(step.logprob_entries), values, strict=True):
                self._find(keys[entry]).logprobs.append(value)
        for row in step.finished:
            self._find((row.uid, row.attempt)).end(row)

    def _add_rows(self, step: replies.StepReplies | replies.DetokenizeMsg, texts: Sequence[str]) -> list[Key]:
        """Adds the tokens of each row; returns the owner of each token."""
        keys: list[Key] = []
        runs = runs_of(step.token_ids, step.num_tokens)
        rows = zip(unpack_int64(step.uids), unpack_int32(step.attempts), runs, texts, strict=True)
        for index, (uid, attempt, run, text) in enumerate(rows):
            keys += [(uid, attempt)] * len(run)
            outcome = self._find((uid, attempt))
            outcome.tokens += run
            outcome.text += text
            outcome.rows.append(Row(len(outcome.tokens), step, index))
        return keys

    def _collect_final(self, final: replies.UserReply) -> None:
        outcome = self._find((final.uid, final.attempt))
        outcome.tokens += unpack_int32(final.token_ids)
        outcome.text += final.incremental_output
        outcome.logprobs += logprobs_of(final.logprobs)
        outcome.end(final)

    def _collect_prompt(self, message: PromptResult) -> None:
        outcome = self._find((message.uid, message.attempt))
        match message:
            case replies.PromptReply():
                outcome.prompt = (message.text, message.token_ids)
                outcome.prompt_logprobs = logprobs_of(message.tokens)
            case replies.PromptLogprobs():
                outcome.prompt_logprobs = unpack_float32(message.logprobs.logprobs).tolist()
            case replies.PooledReply():
                outcome.pooled = unpack_float32(message.values).tolist()
            case UserMsg():
                outcome.tokens = unpack_int32(message.input_ids).tolist()
                outcome.prompt = (message.sampling_params, message.output_ids, message.num_chars_sent)
                outcome.reason = "tokenized"
        outcome.rows.append(Row(len(outcome.tokens), message))


def logprobs_of(tokens: tuple[replies.PositionLogprobs, ...]) -> list[float]:
    """Returns the logprob of each token; 0 for the first one of a prompt, which has none."""
    return [entry.token.logprob or 0.0 for entry in tokens]
