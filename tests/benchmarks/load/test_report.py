"""Counts, throughput and percentiles of results whose numbers are known."""

from array import array

import msgspec
import numpy as np
import pytest

from benchmarks.load.answer import LOST, OK, StreamResult, Usage
from benchmarks.load.drive import Measurement
from benchmarks.load.report import Report, format_report, make_report, quantiles


def result(begin_ms: int, arrivals_ms: list[int], **more: object) -> StreamResult:
    arrivals = array("q", [1_000_000 * arrival for arrival in arrivals_ms])
    made = StreamResult(begin_ns=1_000_000 * begin_ms, arrivals_ns=arrivals, num_tokens=len(arrivals_ms))
    made.end_ns = arrivals[-1] if arrivals else made.begin_ns
    for name, value in more.items():
        setattr(made, name, value)
    return made


MEASUREMENT = Measurement(
    results=[
        result(
            0,
            [10, 30, 60],
            outcome=OK,
            finish_reason="length",
            usage=Usage(100, 64, 3),
            timing={"queue_ms": 2.0, "prefill_ms": 5, "tokens_per_s": 80.0, "decode_ms": None, "seed": 7},
        ),
        result(5, [25], outcome=OK, finish_reason="stop", usage=Usage(50, 0, 1), timing={"queue_ms": 4.0}),
        result(7, [30, 40], outcome=LOST, detail="reset by peer"),
        result(8, [], outcome="http 503", detail="the queue is full"),
        result(9, [50], late_s=0.004),
    ],
    seconds=2.0,
    client_cpu_s=0.1,
    is_cut_off=True,
)


def test_counts_and_throughput() -> None:
    report = make_report(MEASUREMENT)
    assert report.outcomes == {"ok": 2, "connection lost": 1, "http 503": 1, "unfinished": 1}
    assert report.failures == {"connection lost": "reset by peer", "http 503": "the queue is full"}
    assert report.finish_reasons == {"length": 1, "stop": 1}
    assert (report.prompt_tokens, report.cached_tokens) == (150, 64)
    assert report.output_tokens == 7, "tokens that arrived count, also those of requests that did not end"
    assert (report.requests_per_s, report.output_tokens_per_s, report.total_tokens_per_s) == (1.0, 3.5, 78.5)
    assert report.client.cpu_us_per_token == pytest.approx(0.1e6 / 7, abs=0.01)
    assert report.client.percent_of_a_core == 5.0
    assert report.client.latest_send_ms == 4.0


def test_latencies_are_those_of_requests_that_did_not_fail() -> None:
    latencies = make_report(MEASUREMENT).latencies
    assert list(latencies) == ["time to first token", "inter-token", "end to end", "server queue", "server prefill"]
    assert (latencies["time to first token"].p50_ms, latencies["time to first token"].max_ms) == (20.0, 41.0)
    gaps = latencies["inter-token"]
    assert (gaps.count, gaps.mean_ms, gaps.max_ms) == (2, 25.0, 30.0)
    assert latencies["end to end"].mean_ms == 40.0
    assert latencies["server queue"].mean_ms == 3.0
    assert latencies["server prefill"].count == 1


def test_percentiles_interpolate() -> None:
    found = quantiles(range(101))
    assert found is not None
    assert (found.count, found.mean_ms, found.p50_ms, found.p90_ms, found.p99_ms, found.max_ms) == (
        101,
        50.0,
        50.0,
        90.0,
        99.0,
        100.0,
    )
    two = quantiles([0.0, 10.0])
    assert two is not None
    assert (two.p50_ms, two.p90_ms, two.p99_ms) == (5.0, 9.0, 9.9)
    values = np.random.default_rng(0).exponential(size=1000)
    found = quantiles(values)
    assert found is not None
    assert found.p99_ms == pytest.approx(float(np.quantile(values, 0.99)), abs=1e-4)
    assert quantiles([]) is None


def test_the_table_reports_what_the_report_reports() -> None:
    lines = format_report(make_report(MEASUREMENT)).splitlines()
    assert lines[0].startswith("cut off")
    text = "\n".join(lines)
    assert "2 ok, 1 connection lost, 1 http 503, 1 unfinished in 2.00 s (ended by: 1 length, 1 stop)" in text
    assert "  http 503: the queue is full" in text
    assert "150 prompt (64 of them cached), 7 output" in text
    assert "3.5 output tok/s" in text
    [row] = [line.split() for line in lines if line.startswith("inter-token")]
    assert row == ["inter-token", "25.00", "25.00", "29.00", "29.90", "30.00"]


def test_a_run_without_any_result_has_a_report() -> None:
    report = make_report(Measurement())
    assert (report.outcomes, report.latencies, report.output_tokens) == ({}, {}, 0)
    assert "requests      none" in format_report(report)


def test_the_report_survives_json() -> None:
    report = make_report(MEASUREMENT)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report
