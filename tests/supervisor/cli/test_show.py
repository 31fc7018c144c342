"""The lines of `ps` about the stages of an engine."""

from messages.control.admin import ProcessInfo
from supervisor.cli.show import stage_lines


def process(name: str, **gauges: float) -> ProcessInfo:
    return ProcessInfo(
        name=name,
        state="ready",
        pid=1,
        incarnation=1,
        num_restarts=0,
        beat_age_s=0.1,
        busy_s=None,
        cpu_percent=None,
        rss_bytes=None,
        phase="",
        fraction=None,
        gauges=gauges,
    )


def test_stages_are_listed_in_the_order_of_layers_with_a_better_split():
    listed = [
        process("scheduler", stage=3, layers=10, computing_s=6.0),
        process("rank1", stage=1, layers=10, computing_s=2.0),
        process("rank2", stage=2, layers=12, computing_s=4.0),
        process("frontend"),
    ]
    assert list(stage_lines(listed)) == [
        "stages of engine 1, by their part of the computing: rank1 10 layers 17%, rank2 12 layers 33%, scheduler 10 "
        "layers 50%; scheduler is the slowest: try --stages 11,12,9"
    ]


def test_nothing_is_to_move_where_it_would_not_help():
    equal = [
        process("rank1", stage=1, layers=2, computing_s=3.0),
        process("scheduler", stage=2, layers=2, computing_s=4.0),
        process("rank1-2", stage=1, layers=2, computing_s=0.0),
        process("scheduler-2", stage=2, layers=2, computing_s=0.0),
    ]
    (line,) = stage_lines(equal)
    assert line.endswith("rank1 2 layers 43%, scheduler 2 layers 57%")
