"""Counters and histograms that processes keep and the frontend exports: names, buckets and totals."""

from collections.abc import Mapping

import msgspec

BOUNDS: dict[str, tuple[float, ...]] = {
    "step_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    "step_rows": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
    "step_tokens": (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "image_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
    "grammar_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
}
"""Inclusive upper bounds of the buckets by name; one more bucket is above the last bound."""


KV_TIERS = "host", "disk"
"""The tiers below the KV cache."""

TIER_COUNTERS = "hit_pages", "hit_states", "read_bytes", "written_bytes", "errors"
"""Counters of each tier; the full name begins with the tier's."""

COUNTERS = (
    "steps",
    "preemptions",
    "prompt_tokens",
    "prefix_hit_tokens",
    "pages_evicted",
    "window_pages_evicted",
    "state_checkpoints_evicted",
    "pages_recovered",
    "pages_dropped",
    "resumed_tokens",
    "recomputed_tokens",
    "drafts",
    "draft_tokens",
    "accepted_tokens",
    "image_hits",
    "image_misses",
    "images_encoded",
    "images_evicted",
    "tier_skipped_pages",
    "tier_dropped_pages",
    "tier_dropped_states",
    *(f"{tier}_{count}" for tier in KV_TIERS for count in TIER_COUNTERS),
)
"""The scheduler's gauges that only increase."""


class HistogramCounts(msgspec.Struct, frozen=True, array_like=True):
    """`counts` has one entry per bucket (not cumulative); `total` is the sum of all values."""

    counts: tuple[int, ...]
    total: float

    def plus(self, other: "HistogramCounts") -> "HistogramCounts":
        return HistogramCounts(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.total + other.total)


class CounterTotals(msgspec.Struct, frozen=True, array_like=True):
    """Totals over the processes that successively had one place, as of the last beat of each.

    `counters` has the names in `COUNTERS`, `histograms` those in `BOUNDS`.
    """

    counters: dict[str, float] = {}
    histograms: dict[str, HistogramCounts] = {}

    def plus(self, gauges: Mapping[str, float], histograms: Mapping[str, HistogramCounts]) -> "CounterTotals":
        """Returns the totals with the counters and histograms of one more process."""
        added = {name: self.counters.get(name, 0.0) + gauges[name] for name in COUNTERS if name in gauges}
        merged = {
            name: self.histograms[name].plus(histogram) if name in self.histograms else histogram
            for name, histogram in histograms.items()
        }
        return CounterTotals(self.counters | added, self.histograms | merged)
