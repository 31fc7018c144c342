"""A request with logprobs, token by token, as its client finally sees it."""

from collections.abc import Sequence
from typing import Any

from detokenizer_proc.detokenizer import Detokenizer
from messages.columns import pack_float32, pack_int32, unpack_int32, unpack_int64
from messages.ring.replies import DetokenizeMsg, OpenStream, PositionLogprobs, PromptLogprobs, PromptReply, StepReplies
from messages.ring.steps import LogprobColumns
from tests.detokenizer_proc.steps import Client, end, step

Row = tuple[int, float, Sequence[tuple[int, float]]]


def columns(rows: Sequence[Row]) -> LogprobColumns:
    """`rows` are (token id, logprob, alternatives), each with as many alternatives."""
    num_top = len(rows[0][2]) if rows else 0
    assert all(len(top) == num_top for _, _, top in rows)
    flat = [pair for _, _, top in rows for pair in top]
    return LogprobColumns(
        pack_int32([token_id for token_id, _, _ in rows]),
        pack_float32([logprob for _, logprob, _ in rows]),
        num_top,
        pack_int32([token_id for token_id, _ in flat]),
        pack_float32([logprob for _, logprob in flat]),
    )


def step_with_logprob(uid: int, token_id: int, top: Sequence[tuple[int, float]] = (), *finished: Any) -> DetokenizeMsg:
    """One row, whose token has the logprob -0.5."""
    plain = step([(uid, 0, token_id)], *finished)
    logprobs = columns([(token_id, -0.5, top)])
    return DetokenizeMsg(
        plain.step_id, plain.uids, plain.attempts, plain.token_ids, plain.finished, pack_int32([0]), logprobs
    )


def prompt_logprobs_of(prompt_ids: list[int], uid: int = 7) -> PromptLogprobs:
    """Token i has the logprob -i / 4 and itself as its only alternative."""
    rows = [(token_id, -i / 4, [(token_id, -i / 4)]) for i, token_id in enumerate(prompt_ids) if i]
    return PromptLogprobs(uid, 0, columns(rows))


def deliver_prompt(detokenizer: Detokenizer, prompt_ids: list[int]) -> PromptReply:
    """Opens stream 7 and returns the reply about the prompt."""
    opening = OpenStream(7, 0, prompt_ids=pack_int32(prompt_ids), num_prompt_logprobs=1)
    assert detokenizer.handle(opening) == ([], [])
    (reply,), _ = detokenizer.handle(prompt_logprobs_of(prompt_ids))
    assert isinstance(reply, PromptReply)
    return reply


def run_with_logprobs(
    detokenizer: Detokenizer, opening: OpenStream, token_ids: list[int]
) -> tuple[Client, list[PositionLogprobs]]:
    """Sends one token per step, the last with the row's end. Returns the client's view and the tokens' logprobs."""
    detokenizer.handle(opening)
    client = Client()
    positions: list[PositionLogprobs] = []
    for i, token_id in enumerate(token_ids):
        is_last = i == len(token_ids) - 1
        finished = [end(opening.uid, len(token_ids))] if is_last else []
        (replies,), _ = detokenizer.handle(step_with_logprob(opening.uid, token_id, (), *finished))
        assert isinstance(replies, StepReplies)
        client.take(replies, opening.uid)
        entries = [unpack_int64(replies.uids)[entry] for entry in unpack_int32(replies.logprob_entries)]
        positions += [token for uid, token in zip(entries, replies.logprobs, strict=True) if uid == opening.uid]
        positions += [token for final in replies.finals for token in final.logprobs]
    return client, positions
