"""The figures of `bench_whatif_http`: what a client has measured, and how many predictions are close to it."""

from benchmarks.experiments.whatif_0054.bench_whatif import within_goal
from benchmarks.experiments.whatif_0054.bench_whatif_http import COMPARED, summarize
from benchmarks.load.answer import OK, StreamResult
from benchmarks.load.drive import Measurement
from extras.whatif.settings import Setting

MS = 1_000_000


def test_times_are_those_that_the_client_saw():
    streams = [(0, [40, 50, 70]), (10, [110, 130]), (20, [320])]
    results: list[StreamResult] = []
    for begin_ms, arrivals_ms in streams:
        result = StreamResult(begin_ns=begin_ms * MS)
        result.outcome = OK
        result.arrivals_ns.extend(MS * ms for ms in arrivals_ms)
        result.num_tokens = len(arrivals_ms)
        results.append(result)
    outcome = summarize(Measurement(results=results, seconds=2.0), Setting(8, 100, 256))
    assert (outcome.ttft.p50_ms, outcome.inter_token.p50_ms, outcome.e2e.p50_ms) == (100.0, 20.0, 120.0)
    assert (outcome.requests_per_s, outcome.output_tokens_per_s) == (1.5, 3.0)


def test_only_what_is_promised_is_counted():
    latencies = {
        "ttft p50_ms": {"error": 0.15},
        "ttft p90_ms": {"error": -0.151},
        "inter_token p50_ms": {"error": -0.05},
        "e2e p50_ms": {"error": 0.9},
    }
    text = within_goal([{"latencies": latencies}], COMPARED)
    assert text.startswith("2 of 3 figures (p50 and p90 of ttft, inter_token) within 15%; ")
    assert text.endswith("median error 15.0%, largest 15.1%")
