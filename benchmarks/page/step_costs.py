"""The sections about what a step costs outside of the model, what deciding costs, and what speculation gains."""

import statistics
from collections.abc import Sequence

from benchmarks.page.text import Result, make_table


def wire_table(wire: Result) -> str:
    """Returns a row for each size of a step: the time that each process spends on it."""
    rows: list[Sequence[object]] = []
    for step in wire["results"]["steps"]:
        of_process = {"scheduler": 0.0, "detokenizer": 0.0, "frontend": 0.0}
        for stage, times in step["stages"].items():
            process = stage.partition(":")[0]
            if process in of_process:
                of_process[process] += times["median_us"]
        stops = f", {step['num_stop_strings']} stop strings each" if step["num_stop_strings"] else ""
        rows.append((f"{step['num_rows']} rows{stops}", *(f"{micros / 1000:.2f}" for micros in of_process.values())))
    return make_table(("step of", "scheduler ms", "detokenizer ms", "frontend ms, up to the frames"), rows)


def schedule_table(schedule: Result) -> str:
    """Returns a row for each thing that is decided."""
    rows = [(line["what"].strip(), f"{line['median_us']:.1f}", f"{line['p99_us']:.1f}") for line in schedule["results"]]
    return make_table(("", "median µs", "p99 µs"), rows)


def speculation_table(speculation: Result) -> str:
    """Returns a row for each case and kind of speculation."""
    rows: list[Sequence[object]] = []
    for case in speculation["results"]["cases"]:
        for mode, gain in case["modes"].items():
            plain, drafted = (f"{statistics.median(case['tok/s'][one]):,.0f}" for one in ("none", mode))
            accepted = f"{gain['accepted_tokens']:,.0f} of {gain['draft_tokens']:,.0f}"
            times = f"{gain['wall']:.2f} / {gain['cpu']:.2f}", f"{gain['tokens_a_step']:.1f}", f"{gain['steps']:.2f}"
            same = "yes" if gain["same"] else "no"
            rows.append((case["name"], case["rows"], mode, f"{plain} / {drafted}", *times, accepted, same))
    heads = "requests", "rows", "drafts", "tok/s, off / on", "times as fast, wall / CPU time", "tokens a step", "steps"
    return make_table((*heads, "accepted", "same tokens"), rows)
