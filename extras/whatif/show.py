"""Outcomes and capacities as tables."""

from collections.abc import Mapping, Sequence

from extras.whatif.capacity import Capacity
from extras.whatif.outcome import Outcome, Quantiles
from extras.whatif.settings import Setting
from supervisor.cli.show import join_columns

HEADINGS = (
    (
        "max num",
        "num",
        "max batched",
        "prefix",
        "TTFT ms",
        "inter-token",
        "end to end",
        "requests",
        "output",
        "preemp-",
    ),
    ("seqs", "pages", "tokens", "hits", "p50 / p99", "ms", "ms", "/s", "tokens/s", "tions"),
)


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """Returns a line for each outcome under its headings."""
    return "\n".join(join_columns(HEADINGS[0], [HEADINGS[1], *map(_line, outcomes)]))


def capacity_table(capacities: Mapping[Setting, Capacity], slo_s: float) -> str:
    """Returns for each setting its capacity and, rate by rate, the p99 of the time to first token."""
    headings = (
        f"requests a second until p99 TTFT is more than {slo_s:g} s",
        "p99 TTFT in ms at this rate of requests",
    )
    lines: list[tuple[str, str]] = []
    for setting, capacity in capacities.items():
        rate = f"{'at least ' if capacity.is_open else ''}{capacity.requests_per_s:.2f}  {setting}"
        lines.append((rate, "  ".join(f"{p99_ms:.0f} at {at:.2f}" for at, p99_ms in capacity.curve)))
    return "\n".join(join_columns(headings, lines))


def _line(outcome: Outcome) -> tuple[str, ...]:
    setting = outcome.setting
    return (
        str(setting.max_num_seqs),
        str(setting.num_pages),
        str(setting.max_num_batched_tokens),
        f"{outcome.prefix_hit_rate:.1%}" if setting.enable_prefix_caching else "off",
        _pair(outcome.ttft),
        _pair(outcome.inter_token),
        _pair(outcome.e2e),
        f"{outcome.requests_per_s:.2f}",
        f"{outcome.output_tokens_per_s:.0f}",
        str(outcome.num_preemptions),
    )


def _pair(latency: Quantiles) -> str:
    return f"{latency.p50_ms:.1f} / {latency.p99_ms:.1f}"
