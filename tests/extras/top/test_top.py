"""`launch.py top`: what events add up to, and the frame that is made of it."""

from typing import Any

from extras.top.frame import draw_frame
from extras.top.top import MAX_STEPS, lost, merge

SECOND = 1_000_000_000


def process(state: str, **fields: Any) -> dict[str, Any]:
    unknown = {"phase": "", "busy_since_ns": 0, "beat_ns": 99 * SECOND, "num_restarts": 0, "gauges": {}}
    return {"state": state, "cpu_percent": None, "rss_bytes": None, **unknown, **fields}


def request(name: str, begin_s: int, **fields: Any) -> dict[str, Any]:
    open_one = {"stage": "decode", "stage_begin_ns": 99 * SECOND, "end_ns": 0, "finish_reason": None, "waits": None}
    counts = {"prompt_tokens": 7, "cached_tokens": None, "output_tokens": 3}
    return {"request_id": name, "begin_ns": begin_s * SECOND, **open_one, **counts, **fields}


def first() -> dict[str, Any]:
    gauges = {"running": 2, "waiting": 1, "pages_all": 100, "pages_free": 25, "pages_in_use": 50}
    return {
        "now_ns": 100 * SECOND,
        "num_open": 3,
        "processes": {
            "tokenizer": process("starting", phase="loading the tokenizer"),
            "scheduler": process("busy", busy_since_ns=98 * SECOND, gauges=gauges, cpu_percent=97.4, rss_bytes=2**30),
        },
        "edges": {"tokenizer:scheduler": 12.5},
        "requests": {
            "1": request("ended-before", 90, stage=None, end_ns=95 * SECOND, finish_reason="stop"),
            "2": request("ended-last", 91, stage=None, end_ns=97 * SECOND, finish_reason="length"),
            "3": request("younger", 98, waits={"text": "all 2 rows are taken"}),
            "4": request("older", 97),
        },
        "stages": ["stages of engine 1, by their part of the computing: rank1 3 layers 49%"],
        "steps": {"a": [SECOND, SECOND + 2_000_000, 16, 4], "b": [2 * SECOND, 2 * SECOND + 4_000_000, 0, 5]},
    }


def started() -> dict[str, Any]:
    state: dict[str, Any] = {"processes": {}, "edges": {}, "requests": {}, "steps": {}}
    merge(state, first())
    return state


def test_a_frame_shows_the_server():
    text = "\n".join(draw_frame(started(), "model", 140, None))
    assert text.startswith("model: 3 requests open, 2 running, 1 waiting\n")
    for fragment in (
        "starting (loading the tokenizer)",
        "busy 2.0s",
        "97    1024M  1.0s",
        "tokenizer:scheduler 12.5/s",
        "latest: 0 prefill + 5 decode tokens in 4.0 ms; highest: 20 tokens, 4.0 ms",
        "50 of 100 pages in use, 25 free",
        "all 2 rows are taken",
        "ended: length  took 6.0s",
        "stages of engine 1, by their part",
    ):
        assert fragment in text, fragment
    names = [line.split()[0] for line in text.splitlines()[-4:]]
    assert names == ["older", "younger", "ended-last", "ended-before"]
    assert "█" * 20 + "▒" * 10 + "·" * 10 in text


def test_of_a_server_that_does_not_answer_nothing_is_reported_to_be_ready():
    text = "\n".join(draw_frame(lost(started()), "model", 140, None))
    assert "unknown  -     1024M  1.0s" in text
    assert not {"busy", "starting", "ready"} & set(text.split())
    assert "tokenizer:scheduler 0/s" in text


def test_steps_from_before_are_counted():
    state = started()
    state["steps"] = {}
    state["processes"]["scheduler"]["gauges"]["steps"] = 321.0
    assert "no step since top started, 321 before" in draw_frame(state, "model", 140, None)


def test_a_frame_fits_the_terminal():
    lines = draw_frame(started(), "model", 60, 8)
    assert len(lines) == 8
    assert max(map(len, lines)) <= 60
    assert draw_frame(started(), "model", 5, 24), "however narrow"


def test_a_server_that_has_just_begun_has_a_frame():
    state: dict[str, Any] = {"processes": {}, "edges": {}, "requests": {}, "steps": {}}
    merge(state, {"now_ns": 5, "num_open": 0, "frontends_missing": 1, "processes": {"scheduler": process("starting")}})
    text = "\n".join(draw_frame(state, "model", 140, None))
    assert "no step yet" in text
    assert "1 frontends do not answer" in text


def test_events_change_what_they_report_of_and_nothing_else():
    state = started()
    merge(state, {"now_ns": 101 * SECOND, "num_open": 2, "requests": {"4": None}, "processes": {"x": process("ready")}})
    assert set(state["requests"]) == {"1", "2", "3"}
    assert set(state["processes"]) == {"tokenizer", "scheduler", "x"}
    assert (state["num_open"], state["edges"]) == (2, {"tokenizer:scheduler": 12.5})
    merge(
        state,
        {"now_ns": 102 * SECOND, "num_open": 2, "steps": {f"s{n}": [n, n + 1, 0, 1] for n in range(2 * MAX_STEPS)}},
    )
    assert len(state["steps"]) == MAX_STEPS, "however long it runs"
