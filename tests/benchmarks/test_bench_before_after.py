"""The comparison of two checkouts: medians of turns in pairs."""

from benchmarks.bench_before_after import Turn, compare


def turn(tokens_per_s: float, cpu_us: float) -> Turn:
    return Turn(tokens_per_s, {"frontend": cpu_us / 2, "scheduler": cpu_us / 2})


def test_ratios_are_of_neighbours_so_a_slow_phase_of_the_machine_counts_for_nothing():
    before = [turn(1000, 40), turn(500, 80), turn(1000, 40)]
    after = [turn(990, 42), turn(495, 84), turn(990, 42)]
    result = compare(64, 1.0, 6.0, {"before": "", "after": ""}, {"before": before, "after": after})
    assert (result.tokens_per_s_ratio, result.cpu_ratio) == (0.99, 1.05)
    assert result.tokens_per_s == {"before": 1000, "after": 990}
    assert result.cpu_us_per_token == {"before": 40, "after": 42}
