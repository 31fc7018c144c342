from frontend.metrics.totals import ProcessTotals, Totals
from messages.control import ProcessStatus
from messages.histograms import BOUNDS, HistogramCounts


def test_a_successor_that_counts_from_zero_adds_to_its_predecessors():
    totals = Totals()
    totals.update("scheduler", 1, {"steps": 5.0})
    totals.update("scheduler", 1, {"steps": 9.0})
    assert totals.total("scheduler", "steps") == 9
    totals.update("scheduler", 1, {})
    totals.update("scheduler", 2, {})
    assert totals.total("scheduler", "steps") == 9
    totals.update("scheduler", 2, {"steps": 2.0})
    assert totals.total("scheduler", "steps") == 11
    totals.update("scheduler", 4, {"steps": 1.0})
    assert totals.total("scheduler", "steps") == 12
    assert totals.total("other", "steps") == 0


def test_counters_and_histograms_outlive_a_process():
    def counts(first: int) -> dict[str, HistogramCounts]:
        return {"step_rows": HistogramCounts((first, *([0] * len(BOUNDS["step_rows"]))), 2.0 * first)}

    totals = ProcessTotals()
    gauges = {"steps": 3.0, "running": 2.0}
    totals.update([ProcessStatus("scheduler", "ready", incarnation=1, gauges=gauges, histograms=counts(3))])
    totals.update([ProcessStatus("scheduler", "dead", incarnation=1)])
    totals.update([ProcessStatus("scheduler", "starting", incarnation=2)])
    totals.update([ProcessStatus("scheduler", "ready", incarnation=2, gauges={"steps": 1.0}, histograms=counts(1))])
    assert totals.counter("scheduler", "steps") == 4
    assert totals.counter("scheduler", "running") == 0
    histogram = totals.histogram("scheduler", "step_rows")
    assert (histogram.counts[0], sum(histogram.counts), histogram.total) == (4, 4, 8.0)
    assert sum(totals.histogram("scheduler", "step_tokens").counts) == 0
