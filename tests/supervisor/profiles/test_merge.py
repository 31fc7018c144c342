"""Profiles in, one trace out: every process, both ends of each arrow, slices that nest, one clock."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runtime.profiling import ProcessProfile
from supervisor.profiles.merge import MAIN_LOOP, STACKS, merge, read_profiles, write_trace

US, MS = 1_000, 1_000_000
BASE_NS = 5_000 * MS
EPOCH_OFFSET_NS = 1_700_000_000_000_000_000


def profile(name: str, pid: int, began_ns: int = BASE_NS, **fields: Any) -> ProcessProfile:
    lists: dict[str, Any] = {"slices": [], "sent": {}, "received": [], "samples": []}
    times: dict[str, Any] = {"began_ns": began_ns, "ended_ns": began_ns + MS, "epoch_offset_ns": EPOCH_OFFSET_NS}
    return ProcessProfile(**{"name": name, "pid": pid, "incarnation": 1, **times, **lists, **fields})


def events_of(trace: dict[str, Any], **expected: Any) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if all(event.get(key) == expected[key] for key in expected)]


def test_times_count_from_the_first_beginning():
    late = profile("scheduler", 2, BASE_NS + 7 * MS, slices=[("turn", BASE_NS + 8 * MS, BASE_NS + 9 * MS)])
    trace = merge([late, profile("frontend", 1)])
    (turn,) = events_of(trace, ph="X")
    assert (turn["pid"], turn["tid"], turn["ts"], turn["dur"]) == (2, MAIN_LOOP, 8_000.0, 1_000.0)
    assert trace["otherData"]["base_monotonic_ns"] == BASE_NS
    names = {event["pid"]: event["args"]["name"] for event in events_of(trace, name="process_name")}
    assert names == {1: "frontend", 2: "scheduler"}


def test_an_arrow_goes_from_the_slice_that_sends_a_frame_to_the_one_that_takes_it():
    sent = {"scheduler": [("UserMsg uid 5", BASE_NS, BASE_NS + US, 77, 1), ("UserMsg uid 6", BASE_NS, BASE_NS, 77, 2)]}
    received = [("FramesLost", BASE_NS + 2 * US, BASE_NS + 3 * US, 77, 1)]
    received += [("UserMsg uid 5", BASE_NS + 3 * US, BASE_NS + 5 * US, 77, 1)]
    received += [("StopSeen uid 1", BASE_NS, BASE_NS, 9, 9)]
    trace = merge([profile("tokenizer", 1, sent=sent), profile("scheduler", 2, received=received)])
    (begin,), (end,) = events_of(trace, ph="s"), events_of(trace, ph="f")
    assert begin["name"] == end["name"] == "tokenizer>scheduler"
    assert (begin["id"], begin["cat"]) == (end["id"], end["cat"])
    assert isinstance(begin["id"], int)
    assert (begin["pid"], begin["ts"], end["pid"], end["ts"], end["bp"]) == (1, 0.0, 2, 3.0, "e")
    assert begin["args"] == {"message": "UserMsg uid 5"}
    assert events_of(trace, pid=1, ph="X")[0]["name"] == "send UserMsg uid 5 to scheduler"


def test_samples_become_slices_one_in_another():
    def stack(*names: str) -> list[str]:
        return ["thread", *(f"{name}\0file.py\0{len(name)}\1l9" for name in names)]

    samples = [
        (stack("main", "work"), MS),
        (stack("main", "work"), MS),
        (stack("main"), MS),
        (stack("main", "work"), MS),
    ]
    trace = merge([profile("tokenizer", 1, samples=samples, samples_began_ns=BASE_NS + MS)])
    slices = [(event["name"], event["ts"], event["dur"]) for event in events_of(trace, ph="X", tid=STACKS)]
    assert slices == [("main", 1_000.0, 4_000.0), ("work", 1_000.0, 2_000.0), ("work", 4_000.0, 1_000.0)]
    assert events_of(trace, name="main")[0]["args"] == {"at": "file.py:4"}


def test_torch_counts_from_its_own_base_on_the_clock_of_the_system(tmp_path: Path):
    step_ns = BASE_NS + 3 * MS
    torch_base_ns = EPOCH_OFFSET_NS - 60 * 1_000 * MS
    event = {"ph": "X", "name": "step 1", "pid": 2, "tid": 2, "dur": 5.0}
    event["ts"] = (step_ns + EPOCH_OFFSET_NS - torch_base_ns) / US
    summary = {
        "ph": "X",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": 1.0,
        "dur": 1.0,
    }
    meta = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0.0, "args": {"name": "python"}}
        for pid in (0, 2)
    ]
    file = tmp_path / "torch.json"
    file.write_text(json.dumps({"baseTimeNanoseconds": torch_base_ns, "traceEvents": [event, summary, *meta]}))
    trace = merge([profile("scheduler", 2, torch_trace=str(file))])
    (step,) = events_of(trace, ph="X")
    assert step["ts"] == pytest.approx(3_000.0, abs=1.0)
    assert [event["args"]["name"] for event in events_of(trace, name="process_name")] == ["scheduler"]


def test_the_files_are_waited_for_and_then_removed(tmp_path: Path):
    torch_file = tmp_path / "t.json"
    torch_file.write_text('{"traceEvents": []}')
    file, out = tmp_path / "s.profile", tmp_path / "trace.json"
    file.write_bytes(msgspec.msgpack.encode(profile("scheduler", 2, torch_trace=str(torch_file))))
    trace = write_trace([file], out)
    assert json.loads(out.read_bytes()) == trace
    assert list(tmp_path.iterdir()) == [out]
    with pytest.raises(TimeoutError, match=r"s\.profile has not been written"):
        read_profiles([file], timeout_s=0.1)
