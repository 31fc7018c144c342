"""The README's table of speed: our server and its peers, all from one run on one machine."""

from pathlib import Path

from benchmarks.page.text import Result, make_table, read_result


def first_page_table(results: Path) -> str:
    """Returns the table, and the line that names machine, commit and day."""
    run = read_result(results, "cpu")
    found, machine = run["results"], run["machine"]
    vectors = f" with {machine['vectors']}" if machine.get("vectors") else ""
    num_rounds = len(found["workloads"][0]["rounds"]["sluice"])
    rows = [_row(line, found["peers"]) for line in found["workloads"]]
    source = (
        f"{found['shape']} in {found['dtype']}, {machine['cores']} cores of {machine['cpu']}{vectors}, over HTTP, "
        f"medians of {num_rounds} rounds in turn; commit {run['commit']}, {run['when'][:10]}."
    )
    heads = ("workload", "unit", "Sluice", *found["peers"], "against the best of them")
    return make_table(heads, rows) + "\n" + source + "\n"


def _row(line: Result, peers: list[str]) -> list[str]:
    median, is_time = line["median"], line["unit"] == "s"
    own, others = median["sluice"], [median[name] for name in peers]
    gain = min(others) / own if is_time else own / max(others)
    cells = [f"{value:,.{1 if value < 100 else 0}f}" for value in (own, *others)]
    return [f"{line['about']}, {line['tokens']} tokens", line["unit"], *cells, f"{gain:.2f} times"]
