"""One frame of `launch.py top`: lines of text, made from the events of `/live`."""

from collections.abc import Iterable, Sequence
from typing import Any

from messages.control.processes import kind_of, place_of
from messages.engine_names import SCHEDULER
from supervisor.cli.show import join_columns

Json = dict[str, Any]

LEVELS = " ▁▂▃▄▅▆▇█"
EDGES = ("frontend:tokenizer", "tokenizer:scheduler", "scheduler:detokenizer", "detokenizer:frontend")
BAR_WIDTH = 40
NS = 1e9


def draw_frame(state: Json, title: str, num_columns: int, num_lines: int | None) -> list[str]:
    """Returns lines of at most `num_columns` characters; at most `num_lines` of them, all where it is `None`."""
    lines = [
        _head(state, title),
        "",
        *join_columns(("PROCESS", "STATE", "CPU%", "RSS", "BEAT", "RESTARTS"), _process_rows(state)),
        "  ".join(["edges", *(f"{edge} {state['edges'].get(edge, 0.0):g}/s" for edge in EDGES)]),
        "",
        *_step_lines(state, num_columns - 9),
        *_cache_lines(state),
        *state["stages"],
        "",
        *join_columns(("REQUEST", "STAGE", "AGE", "PROMPT", "CACHED", "OUTPUT", "WAITS FOR"), _request_rows(state)),
    ]
    return [line[:num_columns] for line in lines[:num_lines]]


def _head(state: Json, title: str) -> str:
    gauges = _gauges(state)
    missing = f", {state['frontends_missing']} frontends do not answer" if state["frontends_missing"] else ""
    running, waiting = gauges.get("running", 0.0), gauges.get("waiting", 0.0)
    return f"{title}: {state['num_open']} requests open, {running:g} running, {waiting:g} waiting{missing}"


def _process_rows(state: Json) -> Iterable[Sequence[str]]:
    now_ns = state["now_ns"]
    for name, process in state["processes"].items():
        what = process["state"] + (f" ({process['phase']})" if process["phase"] else "")
        if process["busy_since_ns"]:
            what += f" {_seconds(now_ns - process['busy_since_ns'])}"
        yield (
            name,
            what,
            "-" if process["cpu_percent"] is None else f"{process['cpu_percent']:.0f}",
            "-" if process["rss_bytes"] is None else f"{process['rss_bytes'] / 2**20:.0f}M",
            _seconds(now_ns - process["beat_ns"]) if process["beat_ns"] else "-",
            str(process["num_restarts"]),
        )


def _step_lines(state: Json, width: int) -> list[str]:
    """The latest steps: tokens above, times below, each relative to the largest that is shown."""
    steps = sorted(step for step in state["steps"].values() if step[1] is not None)[-max(1, width) :]
    if not steps:
        num_before = _gauges(state).get("steps", 0)
        return [f"no step since top started, {num_before:g} before" if num_before else "no step yet"]
    tokens = [prefill + decode for _, _, prefill, decode, *_ in steps]
    spans_ms = [(end - begin) / 1e6 for begin, end, *_ in steps]
    return [
        f"tokens   {_bars(tokens)}",
        f"time     {_bars(spans_ms)}",
        f"         latest: {steps[-1][2]} prefill + {steps[-1][3]} decode tokens in {spans_ms[-1]:.1f} ms; "
        f"highest: {max(tokens)} tokens, {max(spans_ms):.1f} ms",
    ]


def _bars(values: Sequence[float]) -> str:
    most = max([*values, 1e-9])
    return "".join(LEVELS[round(value / most * (len(LEVELS) - 1))] for value in values)


def _cache_lines(state: Json) -> list[str]:
    gauges = _gauges(state)
    num_pages = gauges.get("pages_all", 0.0)
    if not num_pages:
        return []
    used, free = gauges["pages_in_use"], gauges["pages_free"]
    num_used, num_kept = (round(BAR_WIDTH * part / num_pages) for part in (used, num_pages - used - free))
    bar = "█" * num_used + "▒" * num_kept
    return [f"KV cache {bar.ljust(BAR_WIDTH, '·')} {used:g} of {num_pages:g} pages in use, {free:g} free"]


def _request_rows(state: Json) -> Iterable[Sequence[str]]:
    now_ns = state["now_ns"]
    for request in sorted(state["requests"].values(), key=_order):
        stage = f"ended: {request['finish_reason']}"
        if request["stage"]:
            stage = f"{request['stage']} {_seconds(now_ns - request['stage_begin_ns'])}"
        counts = (request["prompt_tokens"], request["cached_tokens"], request["output_tokens"])
        yield (
            request["request_id"],
            stage,
            ("took " if request["end_ns"] else "") + _seconds((request["end_ns"] or now_ns) - request["begin_ns"]),
            *("-" if count is None else str(count) for count in counts),
            request["waits"]["text"] if request["waits"] else "",
        )


def _order(request: Json) -> tuple[bool, int]:
    """Open ones first, the oldest of them at the top, then those that have ended, the latest first."""
    return bool(request["end_ns"]), -request["end_ns"] or request["begin_ns"]


def _gauges(state: Json) -> dict[str, float]:
    """Returns the gauges of the scheduler, those of several summed."""
    gauges: dict[str, float] = {}
    for name, process in state["processes"].items():
        if kind_of(name) == SCHEDULER and place_of(name) == name:
            gauges |= {key: gauges.get(key, 0.0) + value for key, value in process["gauges"].items()}
    return gauges


def _seconds(span_ns: int) -> str:
    return f"{max(0, span_ns) / NS:.1f}s"
