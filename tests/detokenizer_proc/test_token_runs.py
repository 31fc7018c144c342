"""Several tokens of a row in one step give the same reply as one token per step."""

from itertools import accumulate, pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import vocabulary_of
from messages.columns import pack_counts, pack_int32, pack_int64, runs_of, unpack_int32, unpack_int64
from messages.ring.replies import DetokenizeMsg, FinishedRow, OpenStream, PositionLogprobs, UserReply
from messages.ring.requests import StopSeen
from tests.detokenizer_proc.logprob_runs import columns
from tests.detokenizer_proc.steps import end
from tests.detokenizer_proc.tiny_tokenizers import characters, llama

TOKENIZERS = {"characters": characters(), "llama": llama()}
VOCABULARIES = {name: vocabulary_of(one, one.get_vocab_size()) for name, one in TOKENIZERS.items()}


def ids_of(text: str) -> list[int]:
    return [TOKENIZERS["characters"].token_to_id(char) for char in text]


def run_step(
    rows: list[tuple[int, list[int]]], finished: tuple[FinishedRow, ...] = (), with_logprobs: bool = False
) -> DetokenizeMsg:
    """`rows` are (uid, token ids); the token `i` has the logprob `-i`."""
    tokens = [token_id for _, run in rows for token_id in run]
    return DetokenizeMsg(
        1,
        pack_int64(uid for uid, _ in rows),
        pack_int32([0] * len(rows)),
        pack_int32(tokens),
        finished,
        pack_int32(range(len(tokens))) if with_logprobs else b"",
        columns([(token_id, -token_id, ()) for token_id in tokens]) if with_logprobs else None,
        num_tokens=pack_counts([len(run) for _, run in rows]),
    )


class Reader:
    """Everything that a client receives of stream 7."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[PositionLogprobs] = []
        self.final: UserReply | None = None
        self.stops: list[StopSeen] = []

    def take(self, detokenizer: Detokenizer, step: DetokenizeMsg) -> None:
        replies, stops = detokenizer.handle_step(step)
        runs = list(runs_of(replies.token_ids, replies.num_tokens))
        assert all(len(run) for run in runs)
        for uid, run, text in zip(unpack_int64(replies.uids), runs, replies.texts, strict=True):
            assert uid == 7
            self.token_ids += run
            self.text += text
        self.logprobs += replies.logprobs
        self.stops += stops
        for final in replies.finals:
            assert self.final is None
            self.final = final
            self.token_ids += unpack_int32(final.token_ids)
            self.text += final.incremental_output
            self.logprobs += final.logprobs

    def reported(self) -> dict[str, Any]:
        assert self.final is not None
        usage = self.final.usage.completion_tokens
        reasons = self.final.finish_reason, self.final.stop_reason
        return {"text": self.text, "ids": self.token_ids, "logprobs": self.logprobs, "end": (*reasons, usage)}


def read(name: str, runs: list[list[int]], opened: dict[str, Any], ended: dict[str, Any]) -> dict[str, Any]:
    detokenizer, reader = Detokenizer(VOCABULARIES[name]), Reader()
    detokenizer.handle(OpenStream(7, 0, **opened))
    num_tokens = sum(map(len, runs))
    for index, run in enumerate(runs):
        finished = (end(7, num_tokens, **ended),) if index == len(runs) - 1 else ()
        reader.take(detokenizer, run_step([(7, run)], finished, "num_logprobs" in opened))
    return reader.reported()


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_reply_does_not_depend_on_the_runs_its_tokens_come_in(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TOKENIZERS)))
    token_ids = data.draw(st.lists(st.integers(0, TOKENIZERS[name].get_vocab_size() - 1), min_size=1, max_size=24))
    cuts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=24))
    ends = [place for place in accumulate(cuts) if place < len(token_ids)]
    runs = [token_ids[start:stop] for start, stop in pairwise([0, *ends, len(token_ids)])]
    shown = TOKENIZERS[name].decode(token_ids, skip_special_tokens=True)
    opened: dict[str, Any] = {"include_stop_str_in_output": data.draw(st.booleans())}
    if shown and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(shown) - 1))
        opened["stop"] = (shown[place : place + data.draw(st.integers(1, 3))],)
        opened["min_tokens"] = data.draw(st.integers(0, 6))
    if data.draw(st.booleans()):
        opened["num_logprobs"] = 0
    by_token = data.draw(st.booleans())
    ended = {"reason": "stop", "ended_by_token": True, "stop_reason": 5} if by_token else {}
    assert read(name, runs, opened, ended) == read(name, [[token_id] for token_id in token_ids], opened, ended)


def test_what_comes_after_a_stop_string_in_a_run_is_dropped() -> None:
    detokenizer, reader = Detokenizer(VOCABULARIES["characters"]), Reader()
    detokenizer.handle(OpenStream(7, 0, stop=("lo",), num_logprobs=0))
    reader.take(detokenizer, run_step([(7, ids_of("hel"))], with_logprobs=True))
    reader.take(detokenizer, run_step([(7, ids_of("lo wor"))], with_logprobs=True))
    reader.take(detokenizer, run_step([(7, ids_of("ld"))], with_logprobs=True))
    assert reader.stops == [StopSeen(7, 0)]
    reader.take(detokenizer, run_step([], (end(7, 11, reason="stop"),)))
    reported = reader.reported()
    assert (reported["text"], reported["ids"], reported["end"]) == ("hel", ids_of("hello"), ("stop", "lo", 5))
    assert [token.token.token_id for token in reported["logprobs"]] == ids_of("hello")


def test_runs_of_different_rows_stay_apart() -> None:
    detokenizer = Detokenizer(VOCABULARIES["characters"])
    for uid in (7, 8, 9):
        detokenizer.handle(OpenStream(uid, 0, num_logprobs=0 if uid == 9 else None))
    rows = [(7, ids_of("ab")), (8, ids_of("c")), (9, ids_of("def"))]
    message = run_step(rows, with_logprobs=True)
    replies, _ = detokenizer.handle_step(message)
    assert replies.texts == ("ab", "c", "def")
    assert [list(run) for run in runs_of(replies.token_ids, replies.num_tokens)] == [run for _, run in rows]
    assert list(unpack_int32(replies.logprob_entries)) == [3, 4, 5]
    assert [token.text_offset for token in replies.logprobs] == [0, 1, 2]
