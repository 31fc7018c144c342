import asyncio
import logging

import msgspec
import pytest

from frontend.requests.generation import Generation
from frontend.requests.registry import Registry
from messages.columns import pack_int32, pack_int64
from messages.errors import ErrorInfo
from messages.ring.replies import PromptReply, StepReplies, UserReply
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final, position_logprobs, step


class Opened:
    """A registry with `num` open requests of attempt `attempt`."""

    def __init__(self, num: int = 1, attempt: int = 0):
        self.num_ended = 0
        self.steps: list[dict[int, int]] = []
        self.registry = Registry(uid_block=3, on_end=self._count, on_step=self._count_rows)
        self.generations = [self._open(attempt) for _ in range(num)]

    def _count(self, generation: Generation, final: UserReply) -> None:
        assert generation.final is final
        self.num_ended += 1

    def _count_rows(self, message: StepReplies, now_ns: int, num_rows_after: dict[int, int]) -> None:
        self.steps.append(num_rows_after)

    def _open(self, attempt: int) -> Generation:
        message = TokenizeMsg(self.registry.next_uid(), attempt, "hi", b"", SamplingParams(8), Stamps())
        generation = Generation(message, "id")
        self.registry.add(generation)
        return generation


def test_uids_differ_between_incarnations_and_fit_json():
    uids = [Registry(incarnation, lambda *_: None, lambda *_: None).next_uid() for incarnation in (1, 2, 2**20)]
    assert len(set(uids)) == 3
    assert all(uid < 2**53 for uid in uids)


def test_what_arrives_after_an_end_for_the_client_only_ends_it_in_the_ring():
    ends: list[UserReply] = []
    registry = Registry(3, lambda _, reply: ends.append(reply), lambda *_: None)
    generation = Generation(TokenizeMsg(registry.next_uid(), 0, "hi", b"", SamplingParams(8), Stamps()), "id")
    registry.add(generation)
    registry.receive(step([(generation.message, 1, "a")]))
    generation.finish(final(generation.message, finish_reason="timeout"))
    registry.receive(step([(generation.message, 2, "late")]))
    assert (generation.is_open, generation.pop_all(), ends) == (True, ("a", [1]), [])
    last = final(generation.message, "more", (3,))
    registry.receive(step(finals=(last,)))
    assert (generation.is_open, generation.ended.finish_reason, ends) == (False, "timeout", [last])
    assert generation.output_ids.tolist() == [1]


def test_a_step_reaches_each_of_its_rows():
    opened = Opened(num=3)
    first, second, third = opened.generations
    rows = [(first.message, 1, "a"), (third.message, 3, "c")]
    opened.registry.receive(step(rows, (final(second.message, "b", (2,)),)))
    assert [entry.pop_all() for entry in opened.generations] == [("a", [1]), ("b", [2]), ("c", [3])]
    assert second.final is not None
    assert opened.registry.all_open() == [first, third]
    assert opened.num_ended == 1


def test_the_newest_row_wakes_first():
    opened = Opened(num=3)
    woken: list[int] = []

    class Noted(asyncio.Event):
        def __init__(self, uid: int):
            super().__init__()
            self._uid = uid

        def set(self) -> None:
            woken.append(self._uid)
            super().set()

    for entry in opened.generations:
        entry.changed = Noted(entry.uid)
    opened.registry.receive(step([(entry.message, 1, "a") for entry in opened.generations]))
    assert woken == [entry.uid for entry in reversed(opened.generations)]


def test_several_tokens_of_a_row_stay_one_step_in_their_order():
    opened = Opened(num=3)
    first, second, third = opened.generations
    tokens = [position_logprobs(token_id, "x", -0.5, 0) for token_id in (4, 5, 6)]
    rows = [(first.message, (1, 2, 3), "abc"), (second.message, (4, 5, 6), "def"), (third.message, 7, "g")]
    opened.registry.receive(step(rows, logprobs=dict(zip((3, 4, 5), tokens, strict=True))))
    opened.registry.receive(step([(first.message, 8, "h"), (second.message, (9, 10), "")]))
    assert [first.pop_step(), first.pop_step()] == [("abc", [1, 2, 3]), ("h", [8])]
    assert second.pop_logprobs(3) == tokens
    assert second.pop_all() == ("def", [4, 5, 6, 9, 10])
    assert third.pop_step() == ("g", [7])
    assert first.logprobs == third.logprobs == []


def test_tokens_that_no_one_waits_for_count_from_when_they_were_there():
    opened = Opened(num=2)
    streamed, whole = opened.generations
    whole.message = msgspec.structs.replace(whole.message, sampling_params=SamplingParams(8, is_streamed=False))
    reported_late = [
        msgspec.structs.replace(step([(whole.message, 1, "a")]), committed_ns=ns) for ns in (5000, 7000, 6000)
    ]
    for message in reported_late[:2]:
        opened.registry.receive(message)
    assert opened.steps == [{0: 1}, {5000: 1}]
    assert whole.last_token_ns == 7000
    opened.registry.receive(reported_late[2])
    assert whole.last_token_ns == 7000, "a step must not end before the one before it"
    both = step([(streamed.message, 1, "a"), (whole.message, 2, "b")])
    opened.registry.receive(msgspec.structs.replace(both, committed_ns=8000))
    assert streamed.last_token_ns == whole.last_token_ns > 8000


def test_a_second_final_is_dropped_and_logged(caplog: pytest.LogCaptureFixture):
    opened = Opened()
    (generation,) = opened.generations
    opened.registry.receive(final(generation.message, "a", (1,)))
    with caplog.at_level(logging.WARNING):
        opened.registry.receive(final(generation.message, "again", (1,), finish_reason="stop"))
    assert generation.pop_all() == ("a", [1])
    assert generation.final is not None
    assert generation.final.finish_reason == "length"
    assert opened.num_ended == 1
    assert f"dropped a final reply of uid {generation.uid}" in caplog.text


@pytest.mark.parametrize("attempt", [0, 2])
def test_messages_of_another_attempt_are_dropped(attempt: int, caplog: pytest.LogCaptureFixture):
    opened = Opened(attempt=1)
    (generation,) = opened.generations
    other = msgspec.structs.replace(generation.message, attempt=attempt)
    with caplog.at_level(logging.DEBUG):
        opened.registry.receive(step([(other, 9, "other"), (generation.message, 1, "a")], (final(other),)))
    assert generation.pop_all() == ("a", [1])
    assert generation.final is None
    assert caplog.text.count("dropped") == 2


def test_tokens_of_unknown_requests_are_dropped(caplog: pytest.LogCaptureFixture):
    opened = Opened()
    unknown = msgspec.structs.replace(opened.generations[0].message, uid=1)
    with caplog.at_level(logging.DEBUG):
        opened.registry.receive(step([(unknown, 1, "x")]))
    assert not opened.generations[0].has_step
    assert "uid 1" in caplog.text


def test_columns_of_unequal_length_are_refused():
    opened = Opened()
    uid = opened.generations[0].uid
    with pytest.raises(ValueError, match="zip"):
        opened.registry.receive(StepReplies(1, pack_int64([uid]), pack_int32([0]), pack_int32([5]), ()))


def test_fail_all_ends_everything_once():
    opened = Opened(num=2)
    error = ErrorInfo(503, "ending")
    opened.registry.fail_all(error)
    assert len(opened.registry) == 0
    assert opened.num_ended == 2
    assert all(entry.final is not None and entry.final.error == error for entry in opened.generations)


def test_finals_that_a_restart_leaves_behind_are_no_news(caplog: pytest.LogCaptureFixture):
    opened = Opened(attempt=1)
    (generation,) = opened.generations
    old = msgspec.structs.replace(generation.message, attempt=0)
    orphan = msgspec.structs.replace(old, uid=5)
    with caplog.at_level(logging.INFO):
        opened.registry.receive(step(finals=(final(old), final(orphan))))
        opened.registry.fail(generation, ErrorInfo(500, "refused"))
        opened.registry.receive(final(generation.message))
    assert caplog.text == ""


def test_logprobs_reach_the_rows_that_have_them():
    opened = Opened(num=3)
    first, second, third = opened.generations
    other = msgspec.structs.replace(second.message, attempt=1)
    rows = [(first.message, 1, "a"), (other, 2, "b"), (third.message, 3, "c")]
    entries = {1: position_logprobs(2, "b", -2.0, 0), 2: position_logprobs(3, "c", -3.0, 0)}
    opened.registry.receive(step(rows, logprobs=entries))
    assert [entry.logprobs for entry in opened.generations] == [[], [], [entries[2]]]


def test_what_is_notified_of_a_prompt_reaches_its_current_attempt():
    opened = Opened(attempt=1)
    (generation,) = opened.generations
    opened.registry.receive(PromptReply(generation.uid, 0, "old"))
    opened.registry.receive(PromptReply(5, 1, "unknown"))
    assert generation.prompt is None
    opened.registry.receive(PromptReply(generation.uid, 1, "new"))
    assert generation.prompt is not None
    assert generation.prompt.text == "new"
