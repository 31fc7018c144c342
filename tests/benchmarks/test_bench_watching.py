"""The figures of `bench_watching`; the rest of it is a server under load."""

from benchmarks.bench_watching import Latency, latency_of


def test_the_slowest_of_a_hundred_is_the_p99_and_the_longest():
    assert latency_of([0.002] * 99 + [0.5]) == Latency(100, 2.0, 500.0, 500.0)
    assert latency_of([0.001 * number for number in range(1000, 0, -1)]) == Latency(1000, 501.0, 991.0, 1000.0)
    assert latency_of([0.25]) == Latency(1, 250.0, 250.0, 250.0)
