"""Recommends one of the settings, with the reason."""

from collections.abc import Mapping, Sequence

from extras.whatif.capacity import Capacity
from extras.whatif.outcome import Outcome
from extras.whatif.settings import Setting

EQUAL = 0.01
"""Settings whose first figure differs by less than this part count as equal, and the smaller cache goes first."""

MAX_ERROR = 0.5
"""If the simulation of the recording's own settings is off by more in any figure, nothing is recommended."""

LACKS = {
    "rows": "a row (--max-num-seqs)",
    "tokens": "tokens of a step (--max-num-batched-tokens)",
    "pages": "pages (--num-pages)",
}


def recommend(outcomes: Sequence[Outcome], capacities: Mapping[Setting, Capacity], slo_s: float) -> str:
    """Returns the setting with the largest capacity or, without a `slo_s`, the lowest p99 latency; and the reason."""

    def figure(outcome: Outcome) -> float:
        """Smaller is better."""
        return -capacities[outcome.setting].requests_per_s if slo_s else outcome.e2e.p99_ms

    least = min(map(figure, outcomes))
    equal = [outcome for outcome in outcomes if figure(outcome) <= least + EQUAL * abs(least)]
    best = min(equal, key=lambda one: (one.setting.num_pages, one.setting.max_num_seqs, figure(one)))
    others = sorted((figure(outcome), index) for index, outcome in enumerate(outcomes) if outcome not in equal)
    if slo_s:
        reason = f"serves {-least:.2f} requests/s with a p99 TTFT of at most {slo_s:g} s"
        rest = f"the next best {-others[0][0]:.2f}" if others else ""
    else:
        reason = f"p99 end to end is {best.e2e.p99_ms:,.0f} ms"
        rest = f"the next best has {others[0][0]:,.0f} ms" if others else ""
    same = f"as good within {EQUAL:.0%}, with no smaller cache: {len(equal) - 1} more" if len(equal) > 1 else ""
    parts = [reason, rest, same, describe_waits(best)]
    return f"{best.setting}\n  {'; '.join(part for part in parts if part)}"


def doubt_of(errors: Mapping[str, float]) -> str:
    """Returns why nothing is recommended if the recording's own settings are off by `errors`; empty if they are not."""
    if not errors or max(map(abs, errors.values())) <= MAX_ERROR:
        return ""
    name = max(errors, key=lambda name: abs(errors[name]))
    return (
        f"nothing is recommended: for the recording's own settings {name} is {errors[name]:+.0%} off. Beyond "
        f"{MAX_ERROR:.0%} the simulation is unreliable. Leave out requests of a cold start (--skip-requests N), record "
        "more requests while nothing else runs, or measure the steps separately (`launch.py calibrate`, and --steps)"
    )


def describe_waits(outcome: Outcome) -> str:
    """Returns a description of what requests waited for."""
    shares = [
        (count / outcome.num_requests, LACKS.get(reason, reason))
        for reason, count in sorted(outcome.waits.items(), key=lambda item: -item[1])
    ]
    text = "requests that waited: " + ", ".join(f"{share:.0%} for {lack}" for share, lack in shares)
    text = text if shares else "no request had to wait for a row"
    return f"{text}; {outcome.num_preemptions} preemptions" if outcome.num_preemptions else text
