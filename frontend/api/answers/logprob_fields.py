"""Log-probabilities in the formats of completions, chats, `/generate` and prompts."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from messages.ring.replies import PositionLogprobs, PromptReply, TokenLogprob

LEAST_LOGPROB = -9999.0
"""Represents minus infinity, which JSON cannot express."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four columns with one entry per token. The first token of a prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(TopLogprob, frozen=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class NativeLogprob(msgspec.Struct, frozen=True):
    token_id: int
    token: str
    bytes: list[int]
    logprob: float | None


class NativeLogprobs(NativeLogprob, frozen=True):
    """One token of `/generate` with its alternatives, most likely first."""

    top: list[NativeLogprob]


class PromptLogprob(msgspec.Struct, frozen=True):
    """`rank` is 1 for the most likely token, and null for a token that is not among the alternatives."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[int, PromptLogprob] | None]
"""One entry per prompt token, by token id; null for the first token."""


class TokenNames(NamedTuple):
    """Tokens are named by their text, or as `token_id:7` with `as_ids` (`return_tokens_as_token_ids`)."""

    as_ids: bool = False

    def name(self, token: TokenLogprob) -> str:
        return f"token_id:{token.token_id}" if self.as_ids else token.text

    def completion(self, positions: Sequence[PositionLogprobs], offset: int) -> CompletionLogprobs:
        """Returns the columns for `positions`, whose text starts at character `offset` of the choice."""
        return CompletionLogprobs(
            tokens=[self.name(entry.token) for entry in positions],
            token_logprobs=[_finite(entry.token.logprob) for entry in positions],
            top_logprobs=[self._top(entry) for entry in positions],
            text_offset=[offset + entry.text_offset for entry in positions],
        )

    def chat(self, positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
        return ChatLogprobs([self._chat(entry) for entry in positions])

    def native(self, positions: Sequence[PositionLogprobs]) -> list[NativeLogprobs]:
        return [
            NativeLogprobs(*self._native(entry.token), top=[NativeLogprob(*self._native(other)) for other in entry.top])
            for entry in positions
        ]

    def _top(self, entry: PositionLogprobs) -> dict[str, float] | None:
        """Returns the token and its alternatives by name. If several have the same name, the most likely one counts."""
        if entry.token.logprob is None:
            return None
        found: dict[str, float] = {}
        for token in (entry.token, *entry.top):
            name = self.name(token)
            logprob = _finite(token.logprob) or 0.0
            found[name] = max(logprob, found.get(name, logprob))
        return found

    def _chat(self, entry: PositionLogprobs) -> ChatLogprob:
        return ChatLogprob(*self._likely(entry.token), [TopLogprob(*self._likely(token)) for token in entry.top])

    def _likely(self, token: TokenLogprob) -> tuple[str, list[int], float]:
        return self.name(token), list(token.utf8), _finite(token.logprob) or 0.0

    def _native(self, token: TokenLogprob) -> tuple[int, str, list[int], float | None]:
        return token.token_id, self.name(token), list(token.utf8), _finite(token.logprob)


def prompt_logprobs(prompt: PromptReply | None) -> PromptLogprobs:
    """Returns the prompt's tokens; an empty list if the request ended before they were known."""
    return [] if prompt is None else [_prompt_entry(entry) for entry in prompt.tokens]


def mean_logprob(positions: Iterable[PositionLogprobs]) -> float:
    """Returns the score that ranks choices: minus infinity without tokens, so that such a choice comes last."""
    logprobs = [entry.token.logprob or 0.0 for entry in positions]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")


def _prompt_entry(entry: PositionLogprobs) -> dict[int, PromptLogprob] | None:
    if entry.token.logprob is None:
        return None
    ranks = {token.token_id: rank for rank, token in enumerate(entry.top, start=1)}
    return {
        token.token_id: PromptLogprob(_finite(token.logprob) or 0.0, ranks.get(token.token_id), token.text)
        for token in (entry.token, *entry.top)
    }


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)
