"""The rules of restarts, on a clock of their own."""

import pytest

from messages.config.server import RunConfig
from messages.errors import UsageError
from supervisor.restarts import HEALTHY_S, NoRestartError, Restarts, check_rules


def make(*rules: str, max_per_min: int = 10) -> Restarts:
    return Restarts(RunConfig(restart=rules, max_restarts_per_min=max_per_min))


def test_the_pauses_grow_for_deaths_in_quick_succession():
    restarts = make()
    assert [restarts.record_death("a", 100.0).pause_s for _ in range(7)] == [0, 0.5, 1, 2, 4, 4, 4]


def test_a_process_that_has_served_for_a_while_starts_at_once_again():
    restarts = make()
    for now_s, served_s, pause_s in [(0.0, 1.0, 0), (10.0, 9.9, 0.5), (30.0, HEALTHY_S, 0), (60.0, 1.0, 0.5)]:
        restarts.record_ready("a", now_s)
        assert restarts.record_death("a", now_s + served_s).pause_s == pause_s


def test_one_that_is_ready_takes_over_at_once_and_the_series_continues():
    """A standby starts without a pause; the limit of restarts still holds."""
    restarts = make(max_per_min=4)
    deaths = [restarts.record_death("a", 100.0, is_ready=is_ready) for is_ready in (False, True, True, False)]
    assert [restart.pause_s for restart in deaths] == [0, 0, 0, 2]
    with pytest.raises(NoRestartError, match="max-restarts-per-min is 4"):
        restarts.record_death("a", 100.0, is_ready=True)


def test_a_start_that_fails_is_one_more_death_however_long_it_took():
    restarts = make()
    restarts.record_ready("a", 0.0)
    assert [restarts.record_death("a", now_s).pause_s for now_s in (100.0, 200.0, 300.0)] == [0, 0.5, 1]


def test_the_series_of_one_process_is_not_that_of_another():
    restarts = make()
    assert [restarts.record_death(name, 0.0).pause_s for name in "abab"] == [0, 0, 0.5, 0.5]


def test_a_process_is_due_when_its_pause_is_over_and_only_once():
    restarts = make()
    assert restarts.due_in_s(0.0) == float("inf")
    restarts.record_death("a", 0.0)
    assert restarts.due_in_s(0.0) == 0
    assert restarts.pop_due(0.0) == ["a"]
    assert restarts.due_in_s(0.0) == float("inf")
    restarts.record_death("a", 10.0)
    restarts.record_death("b", 10.25)
    assert restarts.pop_due(10.25) == ["b"]
    assert restarts.due_in_s(10.25) == 0.25
    assert restarts.pop_due(10.4) == []
    assert restarts.due_in_s(11.0) == 0
    assert restarts.pop_due(11.0) == ["a"]


def test_nothing_is_due_after_a_cancel():
    restarts = make()
    restarts.record_death("a", 0.0)
    restarts.cancel()
    assert restarts.pop_due(100.0) == []
    assert restarts.due_in_s(0.0) == float("inf")


def test_the_limit_counts_all_processes_over_the_last_minute():
    restarts = make(max_per_min=3)
    texts = [restarts.record_death(name, float(now_s)).text for now_s, name in enumerate("abc")]
    assert texts == [f"restarting in 0 s ({number} of 3 a minute)" for number in (1, 2, 3)]
    with pytest.raises(NoRestartError, match=r"3 restarts in the last minute and --max-restarts-per-min is 3"):
        restarts.record_death("d", 59.9)
    assert restarts.record_death("d", 60.0).text == "restarting in 0 s (3 of 3 a minute)"
    with pytest.raises(NoRestartError):
        restarts.record_death("d", 60.5)
    assert restarts.record_death("d", 500.0).text == "restarting in 0.5 s (1 of 3 a minute)"


def test_a_limit_of_none_lets_nothing_come_back():
    with pytest.raises(NoRestartError):
        make(max_per_min=0).record_death("a", 0.0)


def test_a_process_whose_rule_is_never_stays_dead():
    restarts = make("a=never", "b=always")
    assert [restarts.is_requested(name) for name in "abc"] == [False, True, True]
    with pytest.raises(NoRestartError, match="--restart a=never"):
        restarts.record_death("a", 0.0)
    assert restarts.due_in_s(0.0) == float("inf")
    assert restarts.record_death("b", 0.0).pause_s == 0


def test_a_process_that_cannot_start_reaches_the_limit():
    restarts, now_s = make(), 0.0
    for _ in range(10):
        now_s += restarts.record_death("a", now_s).pause_s + 1.0
    assert now_s < 60.0
    with pytest.raises(NoRestartError):
        restarts.record_death("a", now_s)


@pytest.mark.parametrize("rule", ["scheduler", "scheduler=", "scheduler=sometimes", "=", ""])
def test_what_is_no_rule_is_refused(rule: str):
    with pytest.raises(UsageError, match="expected NAME=always or NAME=never"):
        check_rules([rule])


def test_rules_that_contradict_each_other_are_refused():
    check_rules(["a=never", "b=always", "a=never"])
    with pytest.raises(UsageError, match="a cannot be both"):
        check_rules(["a=never", "a=always"])
