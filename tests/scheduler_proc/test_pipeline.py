"""Several steps in flight, as the stages of a pipeline compute them: groups, chunks, times, failures, every token."""

import logging
import random
from typing import Any

import pytest

from messages.columns import unpack_int32, unpack_int64
from messages.ring.requests import AbortMsg
from messages.ring.steps import Batch
from scheduler_proc.deciding.step_size import MIN_TOKENS
from tests.scheduler_proc.clients import VOCAB_SIZE, user_msg
from tests.scheduler_proc.overlapped import LaunchedStep
from tests.scheduler_proc.pipelined import PipelinedBench, PipelinedRunner
from tests.scheduler_proc.simulated_adapters import SimulatedAdapters, make_adapter
from tests.scheduler_proc.simulated_draft_model import add_draft_model
from tests.scheduler_proc.simulated_drafter import SimulatedDrafter
from tests.scheduler_proc.simulated_runner import SimulatedPages, expected_output
from tests.scheduler_proc.soak import MAX_MODEL_LEN
from tests.scheduler_proc.timed_soak import TimedSoak

FREE = {"ignore_eos": True}


def uids(batch: Batch | None) -> list[int]:
    assert batch is not None
    return list(unpack_int64(batch.uids))


class ByHand(PipelinedBench):
    """Steps are planned and committed by the test."""

    def __init__(self, num_stages: int, **settings: Any) -> None:
        super().__init__(num_stages, **settings)
        self.planned: list[Batch] = []

    def plan_rows(self) -> list[int]:
        batch = self.scheduler.schedule()
        self.scheduler.check()
        if batch is None:
            return []
        self.planned.append(batch)
        return uids(batch)

    def commit_first(self) -> None:
        self.scheduler.commit(self.runner.run(self.planned.pop(0)))
        self.scheduler.check()
        self.inbox.take(self.scheduler.pop_replies())

    def next_rows(self) -> list[int]:
        """Commits the oldest step; returns the rows of the next one."""
        self.commit_first()
        return self.plan_rows()

    def prefill(self, *uids: int) -> None:
        self.send(*(user_msg(uid, [uid, uid], 40, **FREE) for uid in uids))
        assert self.plan_rows() == list(uids)
        self.commit_first()


def test_rows_are_divided_evenly_and_each_continues_when_its_own_step_has_ended():
    bench = ByHand(4)
    bench.prefill(1, 2, 3, 4, 5)
    assert [bench.plan_rows() for _ in range(4)] == [[1, 2], [3], [4], [5]]
    assert [bench.next_rows() for _ in range(6)] == [[1, 2], [3], [4], [5], [1, 2], [3]]
    assert all(not batch.future_token_indices for batch in bench.planned)


def test_a_single_row_is_in_one_step_at_a_time():
    bench = ByHand(3)
    bench.prefill(1)
    assert [bench.plan_rows() for _ in range(3)] == [[1], [], []]
    assert bench.next_rows() == [1]


def test_new_rows_join_the_smallest_group():
    bench = ByHand(2)
    bench.prefill(1, 2, 3)
    assert [bench.plan_rows(), bench.plan_rows()] == [[1, 2], [3]]
    bench.send(user_msg(4, [4, 4], 40, **FREE))
    assert bench.next_rows() == [1, 2, 4], "its prompt is in the next step"
    assert bench.next_rows() == [3]
    assert [bench.next_rows() for _ in range(4)] == [[1, 4], [2, 3], [1, 4], [2, 3]], "and its tokens where fewer are"


def test_groups_are_even_again_when_rows_have_ended():
    bench = ByHand(2)
    bench.prefill(*range(1, 9))
    assert [bench.plan_rows(), bench.plan_rows()] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    bench.send(*(AbortMsg(uid, 0) for uid in (1, 2, 3)))
    assert [bench.next_rows() for _ in range(4)] == [[4], [5, 6, 7], [4, 8], [5, 6, 7]]


def test_chunks_of_a_prompt_follow_each_other_and_its_row_waits_for_its_token():
    bench = ByHand(3, max_num_batched_tokens=4)
    bench.send(user_msg(1, [3] * 14, 3, **FREE))
    assert [bench.plan_rows() for _ in range(3)] == [[1], [1], [1]]
    assert [unpack_int32(batch.context_lens)[0] for batch in bench.planned] == [0, 4, 8]
    assert bench.gauge("pages_cached") == 0, "nothing is cached before it is computed"
    assert bench.next_rows() == [1]
    assert bench.gauge("pages_cached") == 1
    assert [bench.next_rows() for _ in range(2)] == [[], []], "the last chunk is in flight"
    assert bench.next_rows() == [1]
    assert len(bench.output(1)) == 1


def test_nothing_is_preempted_while_steps_are_in_flight():
    bench = ByHand(2, num_pages=16, page_size=4)
    bench.send(user_msg(1, [1] * 27, 20, **FREE), user_msg(2, [2] * 31, 20, **FREE))
    while not bench.gauge("preemptions"):
        if bench.plan_rows():
            assert not bench.gauge("preemptions") or len(bench.planned) == 1
        else:
            bench.commit_first()
        if len(bench.planned) == 2:
            bench.commit_first()


def test_rows_take_turns_if_each_step_has_ended_before_the_next_is_planned():
    bench = ByHand(3)
    bench.prefill(1, 2, 3, 4)
    assert bench.plan_rows() == [1, 2]
    assert [bench.next_rows() for _ in range(4)] == [[3, 4], [1, 2], [3, 4], [1, 2]]


def test_a_prompt_does_not_wait_for_the_pages_of_an_output_with_drafts():
    """Those are cached when the output ends, and not when a step with drafts does."""
    bench = ByHand(2, drafter=SimulatedDrafter(random.Random(4), VOCAB_SIZE, 4, error_rate=0.0))
    bench.send(user_msg(1, [1] * 5, 30, **FREE))
    while len(bench.output(1)) < 8:
        bench.plan_rows()
        bench.commit_first()
    bench.plan_rows()
    while not bench.planned[-1].num_drafts:
        bench.next_rows()
    bench.send(user_msg(2, [1] * 5 + bench.output(1)[:6], 1, **FREE))
    assert bench.plan_rows() == [2]


def test_nothing_is_planned_behind_the_second_of_two_steps_if_it_repeats_what_may_be_half_done():
    bench = ByHand(3, states=(8, 100), is_sharing=False, max_num_batched_tokens=8)
    bench.prefill(1, 2)
    assert [bench.plan_rows(), bench.plan_rows()] == [[1], [2]]
    bench.scheduler.forget_steps()
    del bench.planned[:]
    bench.send(user_msg(3, [3] * 12, 9, priority=-5, **FREE))
    assert [bench.plan_rows() for _ in range(3)] == [[3], [3, 1, 2], []]


class NotingRunner(PipelinedRunner):
    notes: list[str]

    def launch(self, batch: Batch) -> LaunchedStep:
        self.notes.append(f"launch {batch.step_id}")
        return super().launch(batch)

    def result_of(self, launched: LaunchedStep):
        self.notes.append(f"result {launched.batch.step_id}")
        return super().result_of(launched)


class NotingBench(PipelinedBench):
    def make_device(self) -> NotingRunner:
        device = NotingRunner(self.runner, self._num_stages, self._attempt_of)
        device.notes = self.notes = []
        return device


def test_all_stages_have_a_step_before_the_first_result_is_waited_for():
    bench = NotingBench(3)
    bench.host_s = 0.0
    bench.send(*(user_msg(uid, [uid, uid], 3, **FREE) for uid in (1, 2, 3)))
    bench.run()
    assert bench.notes == [
        *("launch 1", "result 1", "launch 2", "launch 3", "launch 4"),
        *("result 2", "launch 5", "result 3", "launch 6", "result 4", "launch 7", "result 5", "result 6", "result 7"),
    ]


def test_a_step_that_has_ended_is_committed_although_a_stage_is_free():
    bench = NotingBench(3, max_num_batched_tokens=4)
    bench.host_s = 1_000.0
    bench.send(user_msg(1, [3] * 11, 1, **FREE))
    bench.run()
    assert bench.notes == ["launch 1", "launch 2", "result 1", "launch 3", "result 2", "result 3"]


# What a pipeline gains, by simulation.


def decode_s(num_stages: int, num_rows: int, *, has_groups: bool, token_s: float, step_s: float = 0.0) -> float:
    """Returns the seconds for 40 tokens of each row on stages that take `token_s` for each token, and `step_s`."""
    bench = PipelinedBench(num_stages, has_groups=has_groups, max_num_seqs=num_rows, num_pages=400)
    bench.host_s, bench.device.stage_s = 0.0, lambda batch: step_s + token_s * batch.num_tokens
    bench.send(*(user_msg(uid, [uid], 41, **FREE) for uid in range(num_rows)))
    bench.step()
    bench.step()
    start_s = bench.device.now_s
    bench.run()
    return bench.device.now_s - start_s


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_groups_in_all_stages_have_the_throughput_of_one_group_for_each_stage(num_stages: int):
    one_s = decode_s(num_stages, 3, has_groups=False, token_s=0.0, step_s=1.0)
    assert one_s == pytest.approx(40 * num_stages, rel=0.05)
    all_s = decode_s(num_stages, 3 * num_stages, has_groups=True, token_s=0.0, step_s=1.0)
    assert all_s == pytest.approx(one_s, rel=0.1), "as many times the rows in the same time"


@pytest.mark.parametrize("num_stages", [2, 4])
def test_rows_in_one_step_would_leave_all_stages_but_one_without_work(num_stages: int):
    together_s = decode_s(num_stages, 12, has_groups=False, token_s=0.1)
    divided_s = decode_s(num_stages, 12, has_groups=True, token_s=0.1)
    assert together_s / divided_s == pytest.approx(num_stages, rel=0.1)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("num_chunks", [1, 2, 9])
def test_a_prompt_of_n_chunks_takes_n_steps_of_a_stage_and_one_for_each_further_stage(num_stages, num_chunks):
    bench = PipelinedBench(num_stages, max_num_batched_tokens=16, num_pages=100, max_model_len=400)
    bench.host_s, bench.device.stage_s = 0.0, lambda batch: 1.0
    bench.send(user_msg(1, [3, 1, 4, 1] * 4 * num_chunks, 1, **FREE))
    bench.run()
    assert bench.device.now_s == num_chunks + num_stages - 1


@pytest.mark.parametrize("pair_s", [0.0, 1e-5 / 2_000])
def test_later_chunks_are_smaller_if_they_take_longer(pair_s: float):
    """As long a time for each: the second prompt is cut by what the first one showed."""
    sizes: list[tuple[int, float]] = []

    def stage_s(batch: Batch) -> float:
        (count,), (start,) = unpack_int32(batch.query_lens), unpack_int32(batch.context_lens)
        seconds = 1e-5 * count + pair_s * count * (start + count / 2)
        sizes.append((count, seconds))
        return seconds

    bench = PipelinedBench(2, num_pages=600, page_size=16, max_model_len=8_192, max_num_batched_tokens=512)
    bench.host_s, bench.device.stage_s = 0.0, stage_s
    for uid in (1, 2):
        sizes.clear()
        bench.send(user_msg(uid, [uid] * 8_000, 1, **FREE))
        bench.run()
    counts, times = zip(*sizes[:-1], strict=True)
    assert counts[0] == 512
    if not pair_s:
        assert set(counts) == {512}
        return
    assert list(counts) == sorted(counts, reverse=True)
    assert MIN_TOKENS < counts[-1] < 300
    assert max(times) < 1.35 * min(times), "chunks are whole blocks"


# Random requests: each soak compares with what a request gets that is alone.


def check_soak(soak: TimedSoak, bench: PipelinedBench) -> None:
    soak.run()
    soak.check()
    assert bench.device.max_launched == bench.device.num_stages


@pytest.mark.parametrize(("num_stages", "is_early"), [(2, True), (3, False), (4, True)])
def test_random_requests_lose_nothing(num_stages: int, is_early: bool):
    settings = {"num_pages": 44, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 12, "max_num_batched_tokens": 24}
    bench = PipelinedBench(num_stages, is_early=is_early, **settings)
    check_soak(TimedSoak(30 + num_stages, 150, bench, rich_share=0.3), bench)
    assert bench.device.num_ahead > 0.5 * bench.gauge("steps")
    assert bench.device.num_ghosts > 4
    assert bench.gauge("preemptions") > 2
    assert bench.gauge("prefix_hit_tokens") > 100
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout"}


@pytest.mark.parametrize(
    "attached", [{"windows": (9, 40)}, {"states": (24, 3)}, {"is_sharing": False}], ids=["windows", "states", "alone"]
)
@pytest.mark.parametrize("error_rate", [0.3, None], ids=["drafts", "no drafts"])
def test_windows_states_and_drafts_lose_nothing(attached: dict[str, Any], error_rate: float | None):
    drafter = None if error_rate is None else SimulatedDrafter(random.Random(4), VOCAB_SIZE, 4, error_rate)
    settings = {"num_pages": 60, "max_model_len": MAX_MODEL_LEN, "max_num_seqs": 12, "max_num_batched_tokens": 32}
    bench = PipelinedBench(3, is_early=True, drafter=drafter, **settings, **attached)
    check_soak(TimedSoak(40, 60, bench, rich_share=0.3, span_share=0.2), bench)
    assert error_rate is None or bench.gauge("accepted_tokens") > 40


def test_a_group_that_loses_its_rows_gives_its_step_to_the_others():
    """Row 1 is the first that lacks a page, and the last in priority."""
    bench = ByHand(2, num_pages=16, page_size=4)
    for uid in (1, 2):
        bench.send(user_msg(uid, [uid] * (26 - uid), 30, priority=3 - uid, **FREE))
        bench.plan_rows()
        if uid == 1:
            bench.commit_first()
    while not bench.gauge("preemptions"):
        bench.commit_first()
        rows = bench.plan_rows()
    assert rows == [2]
    assert bench.gauge("waiting") == 1


def test_drafts_of_a_model_lose_nothing():
    bench = PipelinedBench(2, num_pages=60, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=48)
    add_draft_model(bench, error_every=3)
    bench.stepper = bench.make_stepper()
    check_soak(TimedSoak(41, 60, bench, rich_share=0.3), bench)
    assert bench.gauge("draft_tokens") > bench.gauge("accepted_tokens") > 40


def test_adapters_lose_nothing():
    adapters = SimulatedAdapters(2, random.Random(3))
    bench = PipelinedBench(3, num_pages=60, max_model_len=MAX_MODEL_LEN, adapters=adapters.slots)
    soak = TimedSoak(42, 60, bench, rich_share=0.1, adapters=[make_adapter(number) for number in range(4)])
    check_soak(soak, bench)
    assert bench.gauge("adapters_placed") > 10


class BadLaunches(PipelinedRunner):
    """Row 2 cannot be computed."""

    def launch(self, batch: Batch) -> LaunchedStep:
        if 2 in uids(batch) and batch.num_decode_rows:
            raise ArithmeticError("a step that cannot be launched")
        return super().launch(batch)


class BadBench(PipelinedBench):
    def make_device(self) -> BadLaunches:
        return BadLaunches(self.runner, self._num_stages, self._attempt_of)


def test_a_row_that_always_fails_fails_alone_and_soon(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    bench = BadBench(2)
    bench.send(*(user_msg(uid, [uid], 20, **FREE) for uid in (1, 2, 3, 4)))
    while (2, 0) not in bench.inbox.finished:
        bench.step()
    assert bench.end(2).finish_reason == "error"
    assert max(len(bench.output(uid)) for uid in (1, 3, 4)) < 4
    bench.run()
    assert [len(bench.output(uid)) for uid in (1, 3, 4)] == [20] * 3


@pytest.mark.parametrize("attached", [{}, {"states": (24, 3)}], ids=["pages", "states"])
def test_failing_steps_and_rows_cost_no_one_else_a_token(attached: dict[str, Any], caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.CRITICAL, "sluice.scheduler")
    settings = {"num_pages": 60, "max_model_len": MAX_MODEL_LEN, "max_num_batched_tokens": 48}
    bench = PipelinedBench(3, **settings, **attached)
    bench.runner.poison, bench.runner.nan = {41}, {42, 43}
    soak = TimedSoak(22, 120, bench, rich_share=0.1)
    bench.device.fails = lambda where: soak.chance.random() < 0.02
    check_soak(soak, bench)
    reasons = {end.finish_reason for end in bench.inbox.finished.values()}
    assert reasons == {"stop", "length", "abort", "timeout", "error"}


def test_a_successor_continues_whatever_steps_were_in_flight():
    """A scheduler dies at any time; the steps in flight have written to the pages that its successor takes over."""
    chance, pages, num_in_flight = random.Random(9), SimulatedPages(48, 4), 0
    prompts = {uid: [3, 1, 4] * chance.randrange(1, 6) + [uid] * chance.randrange(1, 9) for uid in range(1, 9)}
    known: dict[int, list[int]] = {uid: [] for uid in prompts}
    attempt, is_over, resumed = 0, False, [0.0, 0.0]
    while not is_over:
        bench = PipelinedBench(3, is_early=True, num_pages=48, page_size=4, max_num_batched_tokens=16, pages=pages)
        for uid, prompt in prompts.items():
            bench.send(user_msg(uid, prompt, 30, attempt, known[uid], **FREE))
        for _ in range(chance.randrange(40)):
            is_over = not bench.step()
        num_in_flight += bench.stepper.has_step
        for uid in prompts:
            known[uid] = known[uid] + bench.inbox.tokens.get((uid, attempt), [])
        resumed[0] += bench.gauge("resumed_tokens")
        resumed[1] += bench.gauge("recomputed_tokens")
        attempt += 1
    assert num_in_flight > 3
    assert 0 < resumed[1] < 0.5 * resumed[0]
    for uid, prompt in prompts.items():
        params = user_msg(uid, prompt, 30, **FREE).sampling_params
        assert known[uid] == expected_output(prompt, params, VOCAB_SIZE, 64)
