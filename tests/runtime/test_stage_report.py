"""The lines of `ps` and the live views about the stages of an engine."""

from typing import NamedTuple

from runtime.stage_report import stage_lines


class Process(NamedTuple):
    gauges: dict[str, float]
    placement: dict[str, str]


def process(split: str = "", **gauges: float) -> Process:
    return Process(gauges, {"stages": split} if split else {})


def test_stages_are_listed_in_the_order_of_layers_with_a_better_split():
    listed = {
        "scheduler": process("auto: 10,12,10 layers (why)", stage=3, layers=10, computing_s=6.0),
        "rank1": process(stage=1, layers=10, computing_s=2.0),
        "rank2": process(stage=2, layers=12, computing_s=4.0),
        "frontend": process(),
    }
    assert list(stage_lines(listed)) == [
        "stages of engine 1, by their part of the computing: rank1 10 layers 17%, rank2 12 layers 33%, scheduler 10 "
        "layers 50%; scheduler is the slowest: try --stages 11,12,9",
        "stages of engine 1, as divided at the start by --stages auto: 10,12,10 layers (why)",
    ]
    one_stream = process("one-stream: 10,12,10 layers (why)", stage=3, layers=10, computing_s=6.0)
    assert "try" not in "".join(stage_lines(listed | {"scheduler": one_stream}))


def test_nothing_is_to_move_where_it_would_not_help():
    equal = {
        "rank1": process(stage=1, layers=2, computing_s=3.0),
        "scheduler": process(stage=2, layers=2, computing_s=4.0),
        "rank1-2": process(stage=1, layers=2, computing_s=0.0),
        "scheduler-2": process(stage=2, layers=2, computing_s=0.0),
    }
    (line,) = stage_lines(equal)
    assert line.endswith("rank1 2 layers 43%, scheduler 2 layers 57%")
