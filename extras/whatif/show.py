"""Outcomes and capacities as tables."""

from collections.abc import Callable, Mapping, Sequence

from extras.whatif.capacity import Capacity
from extras.whatif.outcome import Outcome, Quantiles
from extras.whatif.settings import Setting
from supervisor.cli.show import join_columns

COLUMNS: tuple[tuple[str, str, Callable[[Outcome], str]], ...] = (
    ("max num", "seqs", lambda one: str(one.setting.max_num_seqs)),
    ("num", "pages", lambda one: str(one.setting.num_pages)),
    ("max batched", "tokens", lambda one: str(one.setting.max_num_batched_tokens)),
    ("prefix", "hits", lambda one: f"{one.prefix_hit_rate:.1%}" if one.setting.enable_prefix_caching else "off"),
    ("TTFT ms", "p50 / p99", lambda one: _pair(one.ttft)),
    ("inter-token", "ms", lambda one: _pair(one.inter_token)),
    ("end to end", "ms", lambda one: _pair(one.e2e)),
    ("requests", "/s", lambda one: f"{one.requests_per_s:.2f}"),
    ("output", "tokens/s", lambda one: f"{one.output_tokens_per_s:.0f}"),
    ("preemp-", "tions", lambda one: str(one.num_preemptions)),
)
"""Both lines of the heading of each column, and its cell for an outcome."""


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """Returns a line for each outcome under its headings."""
    first, second, cells = zip(*COLUMNS, strict=True)
    return "\n".join(join_columns(first, [second, *([cell(one) for cell in cells] for one in outcomes)]))


def capacity_table(capacities: Mapping[Setting, Capacity], slo_s: float) -> str:
    """Returns for each setting its capacity and, rate by rate, the p99 of the time to first token."""
    headings = (f"requests a second until p99 TTFT is more than {slo_s:g} s", "p99 TTFT in ms at this rate of requests")
    lines: list[tuple[str, str]] = []
    for setting, capacity in capacities.items():
        rate = f"{'at least ' if capacity.is_open else ''}{capacity.requests_per_s:.2f}  {setting}"
        lines.append((rate, "  ".join(f"{p99_ms:.0f} at {at:.2f}" for at, p99_ms in capacity.curve)))
    return "\n".join(join_columns(headings, lines))


def _pair(latency: Quantiles) -> str:
    return f"{latency.p50_ms:.1f} / {latency.p99_ms:.1f}"
