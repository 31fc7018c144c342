"""Messages of a scheduler to a detokenizer, and the resulting view of a client."""

from dataclasses import dataclass, field
from typing import Any

from detokenizer_proc.detokenizer import Detokenizer
from messages.columns import pack_int32, pack_int64, runs_of, unpack_int32, unpack_int64
from messages.ring.replies import DetokenizeMsg, FinishedRow, StepReplies, Usage, UserReply
from messages.ring.requests import Stamps, StopSeen


def step(rows: list[tuple[int, int, int]], *finished: FinishedRow, step_id: int = 0) -> DetokenizeMsg:
    """`rows` are (uid, attempt, token id)."""
    uids, attempts, token_ids = zip(*rows, strict=True) if rows else ((), (), ())
    return DetokenizeMsg(step_id, pack_int64(uids), pack_int32(attempts), pack_int32(token_ids), finished)


def end(uid: int, num_tokens: int, attempt: int = 0, reason: Any = "length", **fields: Any) -> FinishedRow:
    return FinishedRow(uid, attempt, reason, Usage(3, 1, num_tokens), Stamps(finished_ns=5), **fields)


@dataclass
class Client:
    """One request as its client sees it."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    final: UserReply | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def take(self, replies: StepReplies, uid: int) -> None:
        runs = runs_of(replies.token_ids, replies.num_tokens)
        for row_uid, token_ids, text in zip(unpack_int64(replies.uids), runs, replies.texts, strict=True):
            if row_uid == uid:
                assert self.final is None
                self.token_ids += token_ids
                self.texts.append(text)
        for final in replies.finals:
            if final.uid == uid:
                assert self.final is None
                self.final = final
                self.token_ids += unpack_int32(final.token_ids)
                self.texts.append(final.incremental_output)


def run(
    detokenizer: Detokenizer, uid: int, token_ids: list[int], *, attempt: int = 0, num_before: int = 0, **fields: Any
) -> tuple[Client, list[StopSeen]]:
    """Sends one token per step, the last with the row's end (`fields` of the `FinishedRow`)."""
    client, stops = Client(), []
    for i, token_id in enumerate(token_ids):
        is_last = i == len(token_ids) - 1
        finished = [end(uid, num_before + len(token_ids), attempt, **fields)] if is_last else []
        replies, seen = detokenizer.handle_step(step([(uid, attempt, token_id)], *finished, step_id=i))
        assert replies.step_id == i
        client.take(replies, uid)
        stops += seen
    return client, stops
