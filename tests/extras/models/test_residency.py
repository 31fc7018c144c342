"""The policy of loads and unloads: rules one by one, then random operations against a model host that is made up."""

from math import inf

import pytest

from extras.models.messages import Description, ModelReport, Models, ProcessOf
from extras.models.residency import Plan, Residency

NAMES = ("a", "b", "c", "d")


class Machine:
    """A residency with a host that obeys at once, or when it is asked to."""

    def __init__(self, limit: int, sizes: dict[str, int | None], keep_alive_s: float = inf):
        self.residency = Residency(limit, keep_alive_s)
        self.sizes = sizes
        self.processes: dict[str, ProcessOf] = dict.fromkeys(sizes, "none")
        self.report()

    def report(self) -> None:
        reports = [
            ModelReport(name, None if size is None else Description("f", size), self.processes[name])
            for name, size in self.sizes.items()
        ]
        self.residency.update(Models(tuple(reports)))

    def set(self, process: ProcessOf, *names: str) -> None:
        self.processes |= dict.fromkeys(names, process)
        self.report()

    def plan(self, *expected: str, now_s: float = 1.0) -> Plan:
        return self.residency.plan(expected, now_s)

    def load(self, *names: str) -> None:
        """Loads models that fit; later ones are used later."""
        for now_s, name in enumerate(names):
            self.set("running", name)
            self.residency.record_ready(name, now_s + 1)


def test_what_fits_starts_at_once_and_once() -> None:
    machine = Machine(10, {"a": 4, "b": 6, "c": 1})
    assert machine.plan("a", "b", "c").start == ("a", "b")
    assert machine.plan("a", "b", "c").start == ()
    machine.set("running", "a", "b")
    plan = machine.plan("a", "b", "c")
    assert (plan.ready, plan.start) == ({"a", "b"}, ())
    assert plan.waits == {"c": "it waits for memory that others take: a (0 open requests), b (0 open requests)"}


def test_a_load_whose_model_has_other_files_now_starts_as_soon_as_they_have_been_read() -> None:
    machine = Machine(10, {"a": 4})
    assert machine.plan("a").start == ("a",)
    machine.sizes["a"] = None
    machine.report()
    assert machine.plan("a").waits == {"a": "its files are being read"}
    machine.sizes["a"] = 5
    machine.report()
    assert machine.plan("a").start == ("a",)


def test_the_least_recently_used_without_requests_go_as_few_as_needed() -> None:
    machine = Machine(10, {"a": 3, "b": 3, "c": 4, "d": 4})
    machine.load("a", "b", "c")
    machine.residency.opened("a", 10)
    assert machine.plan("d").stop == ("c",)  # b alone is not enough, and a is busy
    assert machine.plan("d").stop == ()
    machine.set("none", "c")
    assert machine.plan("d").start == ("d",)
    assert machine.residency.unloads == {"memory": 1}


def test_a_victim_with_requests_gets_no_more_and_goes_when_they_end() -> None:
    machine = Machine(10, {"a": 6, "b": 6})
    machine.load("a")
    machine.residency.opened("a", 1)
    assert machine.plan("b").ready == set()
    plan = machine.plan("b", "a")
    assert plan == (frozenset(), (), (), {"a": "it is being unloaded", "b": plan.waits["b"]}, {})
    machine.residency.closed("a", 2)
    assert machine.plan("b", "a").stop == ("a",)
    machine.set("none", "a")
    assert machine.plan("b", "a").start == ("b",)
    machine.set("running", "b")
    assert machine.plan("b", "a").ready == {"b"}, "the requests of b are served before it goes"
    assert machine.plan("a").stop == ("b",)


def test_a_victim_is_free_again_when_the_load_is_not_requested_any_more() -> None:
    machine = Machine(10, {"a": 6, "b": 6})
    machine.load("a")
    machine.residency.opened("a", 1)
    assert machine.plan("b").ready == set()
    assert machine.plan("b", "a").ready == set()
    assert machine.plan("a", "b").ready == {"a"}, "requests that are older than the load go first"


def test_memory_that_a_load_waits_for_is_not_provided_to_later_ones() -> None:
    machine = Machine(10, {"a": 6, "b": 8, "c": 4, "d": 2})
    machine.load("a")
    machine.residency.opened("a", 1)
    assert machine.plan("b", "c", "d").start == (), "d does not overtake c"
    assert machine.plan("b", "d").start == ("d",), "2 of 10 are free even when b is loaded"
    machine.set("running", "d")
    machine.residency.closed("a", 2)
    assert machine.plan("b", "c").stop == ("a",)
    machine.set("none", "a")
    assert machine.plan("b", "c").start == ("b",)


def test_memory_that_is_being_freed_is_not_provided_twice() -> None:
    machine = Machine(10, {"a": 6, "b": 4, "c": 4})
    machine.set("stopping", "a")
    assert machine.plan("b", "c").start == ("b",)
    machine.set("none", "a")
    assert machine.plan("b", "c").start == ("c",)


def test_the_same_busy_victim_is_kept_and_one_load_at_a_time_closes_any() -> None:
    machine = Machine(10, {"a": 5, "b": 5, "c": 5, "d": 5})
    machine.load("a", "b")
    for name, now_s in (("a", 3), ("a", 3), ("b", 4)):
        machine.residency.opened(name, now_s)
    assert machine.plan("c").ready == {"b"}
    machine.residency.closed("a", 5)
    assert machine.plan("c", "d").ready == {"b"}
    machine.residency.closed("b", 6)
    assert machine.plan("c", "d").stop == ("b",), "one that becomes idle goes at once"


def test_a_model_just_loaded_serves_its_requests_before_it_goes() -> None:
    machine = Machine(10, {"a": None, "b": 5})
    assert machine.plan("a", "b").start == ("b",)
    machine.set("running", "b")
    machine.sizes["a"] = 8
    machine.report()
    assert machine.plan("a", "b").ready == {"b"}
    assert machine.plan("a").stop == ("b",)


def test_models_that_cannot_be_served_are_refused_with_the_numbers() -> None:
    machine = Machine(2**30, {"a": 2**31, "b": None})
    plan = machine.plan("a", "b")
    assert plan.refused == {
        "a": "the model a does not fit: its weights take 2 GiB and its KV cache 0 GiB, and all loaded models "
        "together may take 1 GiB (--models-memory-gb)"
    }
    assert plan.waits == {"b": "its files are being read"}
    machine.residency.update(Models((ModelReport("b", Description(error="no such file")),)))
    assert machine.plan("b").refused == {"b": "no such file"}


def test_keep_alive_begins_at_the_end_of_the_load_and_of_each_request() -> None:
    machine = Machine(10, {"a": 4}, keep_alive_s=5)
    machine.set("running", "a")
    assert machine.plan("a", now_s=1).ready == {"a"}
    machine.residency.record_ready("a", 8)
    assert machine.plan(now_s=12.9).stop == ()
    assert machine.residency.expires_s("a") == 13
    machine.residency.opened("a", 12)
    assert machine.plan(now_s=100).stop == ()
    machine.residency.closed("a", 100)
    assert machine.plan(now_s=105).stop == ("a",)
    assert machine.residency.unloads == {"keep_alive": 1}


@pytest.mark.parametrize(("keep_alive_s", "stop"), [(0, ("a",)), (inf, ())])
def test_keep_alive_of_a_request(keep_alive_s: float, stop: tuple[str, ...]) -> None:
    machine = Machine(10, {"a": 4}, keep_alive_s=5)
    machine.load("a")
    machine.residency.keep("a", keep_alive_s)
    assert machine.plan(now_s=1).stop == stop
    assert machine.plan(now_s=2).stop == ()


def test_an_unload_by_request_waits_for_open_requests_and_holds_new_ones() -> None:
    machine = Machine(10, {"a": 4})
    machine.residency.unload("a")
    machine.load("a")
    assert machine.plan().ready == {"a"}, "an unload of what is not loaded means nothing later"
    machine.residency.opened("a", 1)
    machine.residency.unload("a")
    assert machine.plan() == (frozenset(), (), (), {}, {})
    assert machine.plan("a").waits == {"a": "it is being unloaded"}
    machine.residency.closed("a", 2)
    assert machine.plan("a").stop == ("a",)
    machine.set("none", "a")
    assert machine.plan("a").start == ("a",)


def test_an_order_that_is_lost_is_provided_again() -> None:
    machine = Machine(10, {"a": 4, "b": 8})
    assert machine.plan("a", now_s=1).start == ("a",)
    assert machine.plan("b", now_s=2).start == (), "a may be about to take its memory"
    assert machine.plan("a", now_s=7).start == ("a",)
    machine.set("running", "a")
    assert machine.plan("b", now_s=8).stop == ("a",)
    assert machine.plan("b", now_s=9).stop == ()
    assert machine.plan("b", now_s=14).stop == ("a",)
