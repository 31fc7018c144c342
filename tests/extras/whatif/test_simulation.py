"""What becomes of requests on the simulated clock, against what can be worked out by hand."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from extras.whatif.calibration import Calibration
from extras.whatif.cost_model import CostModel, MeasuredStep
from extras.whatif.drive import ServedRequests, serve
from extras.whatif.outcome import simulate
from extras.whatif.settings import Setting, check_possible, make_config
from extras.whatif.simulation import SimulatedRunner, SimulatedStep
from extras.whatif.traces import Arrival
from messages.columns import pack_int32
from messages.errors import UsageError
from messages.ring.steps import Batch
from scheduler_proc.step_times import StepTimes
from tests.extras.whatif.known_server import MODEL, arrival, calibration, measured_steps

SETTING = Setting(max_num_seqs=4, num_pages=64, max_num_batched_tokens=16)


class NotingRunner(SimulatedRunner):
    """Keeps what it is asked to run."""

    batches: list[Batch]

    def launch(self, batch: Batch) -> SimulatedStep:
        self.batches.append(batch)
        return super().launch(batch)


def run(
    arrivals: list[Arrival],
    setting: Setting = SETTING,
    server: Calibration | None = None,
    model: CostModel = MODEL,
) -> tuple[ServedRequests, list[Batch]]:
    server = server or calibration()
    runner = NotingRunner(model.predict, setting, server.can_overlap, arrivals)
    runner.batches = []
    served = serve(arrivals, make_config(setting, server), runner, runner.clock, StepTimes())
    return served, runner.batches


def random_arrivals(seed: int, num_requests: int = 60) -> list[Arrival]:
    chance = random.Random(seed)
    arrivals: list[Arrival] = []
    at_s = 0.0
    for index in range(num_requests):
        start = chance.choice((0, 1000 * index))  # some prompts begin alike
        arrivals.append(arrival(range(start, start + chance.randint(1, 40)), chance.randint(1, 20), at_s))
        at_s += chance.expovariate(20.0)
    return arrivals


def test_a_request_alone_takes_its_prefill_and_then_a_step_a_token():
    served, _ = run([arrival(range(10), 3, at_s=1.0)])
    assert served.first_s.tolist() == pytest.approx([1.030])
    assert served.gaps_s.tolist() == pytest.approx([0.010, 0.010])
    assert served.last_s.tolist() == pytest.approx([1.050])


def test_a_long_prompt_takes_a_step_for_each_chunk_and_the_next_waits_for_tokens():
    served, _ = run([arrival(range(20), 2), arrival(range(100, 106), 1)])
    # 16 tokens; the other 4 and all 6 of the second; the last token of the first
    assert served.first_s.tolist() == pytest.approx([0.066, 0.066])
    assert served.last_s.tolist() == pytest.approx([0.076, 0.066])
    assert served.waits == {"tokens": 1}


def test_with_one_row_the_second_request_waits_for_the_first_to_end():
    arrivals = [arrival(range(4), 3), arrival(range(100, 104), 1, at_s=0.001)]
    served, _ = run(arrivals, Setting(1, 64, 16))
    assert served.last_s.tolist() == pytest.approx([0.044, 0.068])
    assert served.waits == {"rows": 1}
    together, _ = run(arrivals)
    assert together.last_s.tolist() == pytest.approx([0.058, 0.048])


def test_a_prefix_that_is_cached_is_not_computed_again():
    arrivals = [arrival(range(12), 1), arrival(range(13), 1, at_s=1.0)]
    served, batches = run(arrivals)
    assert [batch.num_tokens for batch in batches] == [12, 1]
    assert served.gauges["prefix_hit_tokens"] == 12
    outcome = simulate(arrivals, calibration(), MODEL, SETTING)
    assert outcome.prefix_hit_rate == 12 / 25
    off = simulate(arrivals, calibration(), MODEL, replace_setting(enable_prefix_caching=False))
    assert off.prefix_hit_rate == 0
    assert off.ttft.p99_ms > outcome.ttft.p99_ms


def replace_setting(**fields: bool) -> Setting:
    return Setting(4, 64, 16, **fields)


def test_with_overlap_a_step_starts_as_the_one_before_it_ends():
    served, batches = run([arrival(range(10), 4)], server=calibration(can_overlap=True))
    assert served.last_s.tolist() == pytest.approx([0.060])
    assert len(batches) == 4
    assert served.gauges["steps_ahead"] == 3


@pytest.mark.parametrize("can_overlap", [False, True])
def test_the_same_arrivals_give_the_same_outcome(can_overlap: bool):
    server = calibration(can_overlap=can_overlap)
    setting = Setting(4, 16, 16)
    first = simulate(random_arrivals(0), server, MODEL, setting)
    assert first == simulate(random_arrivals(0), server, MODEL, setting)
    assert first != simulate(random_arrivals(1), server, MODEL, setting)
    assert first.num_preemptions or first.waits


@pytest.mark.parametrize("can_overlap", [False, True])
def test_no_step_is_larger_than_its_setting_and_every_request_gets_its_tokens(can_overlap: bool):
    arrivals = random_arrivals(3)
    setting = Setting(max_num_seqs=3, num_pages=16, max_num_batched_tokens=8)
    served, batches = run(arrivals, setting, calibration(can_overlap=can_overlap))
    assert max(batch.num_rows for batch in batches) == 3
    assert max(batch.num_tokens for batch in batches) == 8
    assert served.gauges["output_tokens"] == sum(one.num_output for one in arrivals)
    assert served.gauges["finished_length"] == len(arrivals)
    assert served.gauges["pages_in_use"] == 0
    assert len(served.gaps_s) == sum(one.num_output - 1 for one in arrivals)
    assert (served.first_s > served.arrived_s).all()
    assert np.isclose(served.gaps_s.sum(), (served.last_s - served.first_s).sum())


@pytest.mark.parametrize("is_explained", [True, False])
def test_steps_that_take_twice_as_long_double_the_latencies_of_requests_that_do_not_meet(is_explained: bool):
    arrivals = [arrival(range(100 * index, 100 * index + 5), 4, at_s=index) for index in range(20)]
    slow = CostModel(
        MODEL.knots, *(tuple(2 * one for one in part) for part in (MODEL.knot_seconds, MODEL.term_seconds))
    )
    model = slow if is_explained else MODEL
    steps = [MeasuredStep(step.size, 2 * step.seconds) for step in measured_steps()]
    once = simulate(arrivals, calibration(), MODEL, SETTING)
    twice = simulate(arrivals, calibration(steps=steps), model, SETTING)
    for name in ("ttft", "inter_token", "e2e"):
        for quantile in ("p50_ms", "p90_ms", "p99_ms"):
            assert getattr(getattr(twice, name), quantile) == pytest.approx(2 * getattr(getattr(once, name), quantile))


def test_what_a_request_takes_outside_of_the_scheduler_is_added_once():
    arrivals = [arrival(range(10), 3)]
    outcome = simulate(arrivals, calibration(pipeline_s=0.005), MODEL, SETTING)
    assert outcome.ttft.p50_ms == pytest.approx(35.0)
    assert outcome.e2e.p50_ms == pytest.approx(55.0)
    assert outcome.inter_token.p50_ms == pytest.approx(10.0)


def test_tokens_that_are_late_on_their_way_hold_up_those_behind_them():
    jitters_s = iter([0.0, 0.025, 0.0, 0.0, -0.001])
    runner = SimulatedRunner(MODEL.predict, SETTING, can_overlap=False)
    config = make_config(SETTING, calibration())
    served = serve(
        [arrival(range(10), 5)], config, runner, runner.clock, StepTimes(), math.inf, lambda: next(jitters_s)
    )
    # tokens at 30, 40, 50, 60 and 70 ms; the second is seen at 65 ms
    assert served.first_s.tolist() == pytest.approx([0.030])
    assert served.gaps_s.tolist() == pytest.approx([0.035, 0.0, 0.0, 0.004])


def test_more_load_never_shortens_the_longest_wait():
    arrivals = random_arrivals(5)
    dense = [replace(one, at_s=one.at_s / 10) for one in arrivals]
    light, heavy = (simulate(some, calibration(), MODEL, SETTING).ttft.p99_ms for some in (arrivals, dense))
    assert heavy > light


def test_recorded_tokens_that_repeat_come_in_fewer_steps_and_made_up_ones_do_not():
    output_ids = pack_int32([*range(8), *range(8), 70, 71, 72, *range(8)])
    drafting = calibration(num_speculative_tokens=3)
    known, unknown = ([replace(arrival(range(8), 27), output_ids=tokens)] for tokens in (output_ids, b""))
    served, batches = run(known, server=drafting)
    assert served.gauges["output_tokens"] == 27
    assert served.gauges["accepted_tokens"] > 10
    assert len(batches) == 27 - served.gauges["accepted_tokens"]
    on_gpu = calibration(num_speculative_tokens=3, can_overlap=True)
    cases = (known, drafting), (known, drafting), (unknown, drafting), (known, on_gpu)
    outcomes = [simulate(some, server, MODEL, SETTING) for some, server in cases]
    assert [outcome.num_steps for outcome in outcomes] == [len(batches), len(batches), 27, 27]
    assert outcomes[0] == outcomes[1]


def test_a_cache_without_room_for_the_longest_request_is_refused_with_what_is_needed():
    with pytest.raises(UsageError, match=r"--num-pages 15 holds 60 tokens.* may have 64 .*at least 16 pages"):
        check_possible(Setting(4, 15, 16), calibration())
    check_possible(Setting(4, 16, 16), calibration())


def test_a_request_of_another_client_does_not_wait_for_all_of_one():
    first_s: list[float] = []
    for client in ("", "other"):
        arrivals = [arrival(range(1_000 * index, 1_000 * index + 16), 8, at_s=0.0) for index in range(12)]
        late = replace(arrival(range(90_000, 90_010), 2, at_s=0.0), client=client, share=2)
        served, _ = run([*arrivals, late])
        first_s.append(served.first_s[-1])
    assert first_s[1] < first_s[0] / 3
