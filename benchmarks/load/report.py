"""The report of a run: counts, throughput and latencies, as a structure and as a table."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from benchmarks.load.answer import OK, UNFINISHED, StreamResult
from benchmarks.load.drive import Measurement


class Quantiles(msgspec.Struct, frozen=True):
    """One latency over all requests (or all gaps), in milliseconds."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


class ClientCost(msgspec.Struct, frozen=True):
    """What the load generator itself took: near a whole core it measures itself and not the server.

    `latest_send_ms`: how long after its planned time the latest request was sent (open loop).
    """

    cpu_us_per_token: float
    percent_of_a_core: float
    latest_send_ms: float


class Report(msgspec.Struct, frozen=True):
    """Everything measured in one run. `latencies` by name; those from the server's `timing` begin with "server "."""

    seconds: float
    is_cut_off: bool
    outcomes: dict[str, int]
    failures: dict[str, str]
    finish_reasons: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    latencies: dict[str, Quantiles]
    client: ClientCost


def make_report(measurement: Measurement) -> Report:
    """Returns the report of what has been measured, requests that did not end included in the counts of tokens."""
    results = measurement.results
    ok = [result for result in results if result.outcome == OK]
    usages = [result.usage for result in ok if result.usage is not None]
    num_prompt, num_output = sum(usage.prompt_tokens for usage in usages), sum(result.num_tokens for result in results)
    seconds = max(measurement.seconds, 1e-9)
    return Report(
        seconds=round(measurement.seconds, 3),
        is_cut_off=measurement.is_cut_off,
        outcomes=dict(Counter(result.outcome for result in results).most_common()),
        failures={result.outcome: result.detail for result in results if result.outcome not in (OK, UNFINISHED)},
        finish_reasons=dict(Counter(result.finish_reason or "?" for result in ok).most_common()),
        prompt_tokens=num_prompt,
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        output_tokens=num_output,
        requests_per_s=round(len(ok) / seconds, 3),
        output_tokens_per_s=round(num_output / seconds, 2),
        total_tokens_per_s=round((num_prompt + num_output) / seconds, 2),
        latencies=_latencies(ok, [result for result in results if result.outcome == UNFINISHED]),
        client=ClientCost(
            cpu_us_per_token=round(measurement.client_cpu_s * 1e6 / max(1, num_output), 2),
            percent_of_a_core=round(100 * measurement.client_cpu_s / seconds, 1),
            latest_send_ms=round(1000 * max((result.late_s for result in results), default=0.0), 3),
        ),
    )


def quantiles(values_ms: Sequence[float] | np.ndarray) -> Quantiles | None:
    """Returns mean, percentiles (interpolated) and maximum; `None` without values."""
    values = np.asarray(values_ms, dtype=np.float64)
    if not values.size:
        return None
    points = [values.mean(), *np.percentile(values, [50, 90, 99]), values.max()]
    return Quantiles(values.size, *(round(float(point), 4) for point in points))


def _latencies(ok: list[StreamResult], unfinished: list[StreamResult]) -> dict[str, Quantiles]:
    """Latencies of successful requests. Tokens of requests that were cut off count too."""
    streams = [result for result in [*ok, *unfinished] if result.arrivals_ns]
    gaps = [np.diff(np.asarray(result.arrivals_ns)) for result in streams]
    columns: dict[str, Sequence[float] | np.ndarray] = {
        "time to first token": [_ms(result.arrivals_ns[0] - result.begin_ns) for result in streams],
        "inter-token": np.concatenate(gaps) / 1e6 if gaps else [],
        "end to end": [_ms(result.end_ns - result.begin_ns) for result in ok],
        **_timing_columns(ok),
    }
    return {name: found for name, values in columns.items() if (found := quantiles(values)) is not None}


def _timing_columns(ok: list[StreamResult]) -> dict[str, list[float]]:
    """The parts of the server's own timeline, each in milliseconds, in the server's order."""
    columns: dict[str, list[float]] = {}
    for result in ok:
        for field, value in result.timing.items():
            if field.endswith("_ms") and isinstance(value, int | float):
                columns.setdefault(f"server {field.removesuffix('_ms').replace('_', ' ')}", []).append(value)
    return columns


def _ms(ns: int) -> float:
    return ns / 1e6


def format_report(report: Report) -> str:
    """Returns the report as the lines that a person reads."""
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in report.outcomes.items()) or "none"
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.finish_reasons.items())
    lines = [
        f"requests      {outcomes} in {report.seconds:.2f} s" + (f" (ended by: {reasons})" if reasons else ""),
        *(f"  {outcome}: {detail}" for outcome, detail in report.failures.items()),
        f"tokens        {report.prompt_tokens} prompt ({report.cached_tokens} of them cached), "
        f"{report.output_tokens} output",
        f"throughput    {report.output_tokens_per_s:.1f} output tok/s, {report.total_tokens_per_s:.1f} total tok/s, "
        f"{report.requests_per_s:.2f} requests/s",
        "",
        *latency_table(report.latencies),
        "",
        f"this client   {report.client.cpu_us_per_token:.1f} µs of CPU a token, "
        f"{report.client.percent_of_a_core:.0f} % of a core, latest request {report.client.latest_send_ms:.1f} ms late",
    ]
    if report.is_cut_off:
        lines.insert(0, "cut off: this is what has been measured so far")
    return "\n".join(lines)


def latency_table(latencies: dict[str, Quantiles]) -> Iterable[str]:
    """Yields the lines of a table with one latency a row."""
    width = max([len(name) for name in latencies] + [10]) + 2
    yield f"{'ms':<{width}}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}"
    for name, row in latencies.items():
        cells = (row.mean_ms, row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms)
        yield f"{name:<{width}}" + "".join(f"{cell:>10.2f}" for cell in cells)
