"""The figures of `bench_recording`; its turns are those of `bench_before_after`."""

from benchmarks.bench_before_after import Turn
from benchmarks.bench_recording import FLAGS, compare, rotated


def turn(tokens_per_s: float, cpu_us: float) -> Turn:
    return Turn(tokens_per_s, {"frontend": cpu_us - 1, "scheduler": 1})


def test_each_side_is_compared_with_the_turn_without_it_in_the_same_round():
    """The second round was on a busy machine, for both sides."""
    sides = compare(
        {
            "off": [turn(1000, 50), turn(500, 90), turn(1000, 50)],
            "record": [turn(980, 52), turn(490, 95), turn(900, 60)],
        }
    )
    assert (sides["off"].tokens_per_s_ratio, sides["off"].cpu_ratio) == (1.0, 1.0)
    assert (sides["record"].tokens_per_s_ratio, sides["record"].tokens_per_s) == (0.98, 900)
    assert sides["record"].cpu_ratio == round(95 / 90, 4)


def test_each_side_begins_a_round_and_none_is_left_out():
    names = list(FLAGS)
    rounds = [rotated(names, number) for number in range(len(names))]
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert {one[0] for one in rounds} | {one[-1] for one in rounds} == set(names)
