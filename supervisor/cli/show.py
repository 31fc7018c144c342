"""Results of commands as people read them: tables and lines."""

from collections.abc import Iterable, Sequence

from messages.control.admin import ProcessInfo, ProcessList, Scaling
from messages.control.processes import ENCODER, kind_of

SHOWN_GAUGES = (
    *("requests", "waiting", "running", "streams", "pages_free", "pages_cached", "pages_held"),
    "chars_in_hand",
)
"""The gauges that `ps` shows, where a process has them and they are not 0; --json has all."""

COLUMNS = ("PROCESS", "PID", "STATE", "BEAT", "INC", "RESTARTS", "CPU%", "RSS", "QUEUE")


def process_table(processes: Sequence[ProcessInfo]) -> str:
    """Returns one line a process under a line of headings."""
    return "\n".join(join_columns(COLUMNS, map(_row, processes)))


def scaling_text(scaling: Scaling) -> str:
    """Returns how many engines there are to be, and why."""
    return f"engines: {scaling.target} of {scaling.min_engines} to {scaling.max_engines}: {scaling.text}"


def memory_text(server: ProcessList) -> str:
    """Returns the memory of the server, what its schedulers have reported of it, and where images are encoded."""
    texts = [f"memory: {_megabytes(server.memory_bytes)}"]
    for one in (process.gauges for process in server.processes if "weights_bytes" in process.gauges):
        weights, cache, used = (_megabytes(one[f"{of}_bytes"]) for of in ("weights", "kv_cache", "kv_cache_resident"))
        texts.append(f"weights {weights}, KV cache {used} of at most {cache}")
    experts = (process.placement.get("cpu_experts") for process in server.processes)
    texts += [f"in the host's memory: experts of {text}" for text in experts if text]
    texts += [
        f"images are encoded on {one.placement['device']} in {one.placement['dtype']}"
        for one in server.processes
        if kind_of(one.name) == ENCODER and one.placement
    ][:1]
    return "; ".join(texts)


def join_columns(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> list[str]:
    """Returns a line for the headings and one for each row of `cells`, as wide as they have to be."""
    rows = [headings, *cells]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(process: ProcessInfo) -> tuple[str, ...]:
    gauges = process.gauges
    queue = " ".join(f"{name}={gauges[name]:g}" for name in SHOWN_GAUGES if gauges.get(name))
    return (
        process.name,
        str(process.pid or "-"),
        _state(process),
        _seconds(process.beat_age_s),
        str(process.incarnation),
        str(process.num_restarts),
        "-" if process.cpu_percent is None else f"{process.cpu_percent:.1f}",
        _megabytes(process.rss_bytes),
        queue or "-",
    )


def _state(process: ProcessInfo) -> str:
    if process.phase:
        fraction = "" if process.fraction is None else f" {process.fraction:.0%}"
        return f"{process.state} ({process.phase}{fraction})"
    return f"{process.state} {process.busy_s:.1f}s" if process.busy_s else process.state


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}s"


def _megabytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 2**20:.0f}M"
