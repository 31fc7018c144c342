"""Steps with prompts have fewer tokens where they take long, so that others soon get their turn."""

from messages.ring.requests import Pooling
from scheduler_proc.deciding.step_size import MIN_TOKENS, STEP_S, StepSize
from tests.scheduler_proc.clients import Bench, user_msg


def test_the_size_follows_the_speed_within_its_bounds():
    size = StepSize(512)
    assert size.num_tokens == 512
    size.record_time(512, 512 / 10_000)
    assert size.num_tokens == 512, "a fast machine is not slowed down"
    for _ in range(9):
        size.record_time(size.num_tokens, size.num_tokens / 1_000)
    assert 192 <= size.num_tokens <= 1_000 * STEP_S
    for _ in range(9):
        size.record_time(size.num_tokens, size.num_tokens / 10)
    assert size.num_tokens == MIN_TOKENS
    for _ in range(19):
        size.record_time(size.num_tokens, size.num_tokens / 10_000)
    assert size.num_tokens == 512


def test_a_small_and_quick_step_reports_nothing():
    size = StepSize(512)
    size.record_time(2, 0.1)
    assert size.num_tokens == 512


def slow_bench() -> Bench:
    bench = Bench(num_pages=400, max_model_len=400, max_num_batched_tokens=160)
    bench.scheduler._policy.step_size.record_time(160, 100.0)
    return bench


def test_a_prompt_is_cut_where_steps_are_slow():
    bench = slow_bench()
    bench.send(user_msg(1, [1] * 390, 1))
    assert [bench.step() for _ in range(7)] == [{1: MIN_TOKENS}] * 6 + [{1: 390 - 6 * MIN_TOKENS}]
    bench.run()


def test_short_prompts_of_many_requests_have_whole_steps():
    bench = slow_bench()
    bench.send(*[user_msg(uid, [uid] * 190, 1) for uid in (1, 2, 3)])
    assert [sum(bench.step().values()) for _ in range(2)] == [160, 160]
    bench.run()


def test_a_prompt_that_must_not_be_cut_has_a_step_of_its_own():
    bench = slow_bench()
    pooling = Pooling("embed", is_whole=True)
    bench.send(*[user_msg(uid, [uid] * 100, 0, pooling=pooling) for uid in (1, 2)])
    assert [bench.step() for _ in range(2)] == [{1: 100}, {2: 100}]
    bench.send(*[user_msg(uid, [uid] * 30, 0, pooling=pooling) for uid in (3, 4, 5)])
    assert bench.step() == {3: 30, 4: 30, 5: 30}
    bench.run()
