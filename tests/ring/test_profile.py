"""A profile of a real server under load: one trace with every process, every step and every frame."""

import contextlib
import json
import stat
import subprocess
import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.server_process import LAUNCH
from tests.ring.client import OPERATOR, RingClient, body
from tests.ring.perfetto_engine import open_trace

pytestmark = pytest.mark.ring

SECONDS = (1.0, 5.0, 20.0)
"""Duration of the profile, and longer ones if a busy machine does too little in it."""

MIN_STEPS = 100
CLOCK_US = 1_000.0
"""The maximum difference between two records of one event."""

ROUNDING_US = 0.01
FLOWS = """
    with places as (
        select slice.id, slice.ts, slice.name, process.name as process
        from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
    )
    select s.process as sender, t.process as receiver, count(*) as num, min(t.ts - s.ts) as fastest_ns
    from flow join places s on slice_out = s.id join places t on slice_in = t.id
    where s.name glob 'send *' and t.name glob 'take *' group by sender, receiver
"""
NOTED_TWICE = """
    select theirs.ts - ours.ts as late_ns from slice ours join slice theirs using (name)
    where name glob 'step *' and ours.category = 'sluice' and theirs.category = 'user_annotation'
"""
"""Steps as our profiler and torch's record them."""

RING = {"frontend>tokenizer", "tokenizer>scheduler", "scheduler>detokenizer", "detokenizer>frontend"}


@pytest.fixture(scope="module")
def ring(plain_ring: RingClient) -> RingClient:
    return plain_ring


@contextlib.contextmanager
def load(ring: RingClient) -> Iterator[None]:
    """Clients that keep generating until the end of the block."""
    is_over = threading.Event()

    def generate() -> None:
        while not is_over.is_set():
            ring.generate_all([body([7 + index, 8, 9], max_tokens=60, ignore_eos=True) for index in range(4)])

    thread = threading.Thread(target=generate)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(60.0)


@pytest.fixture(scope="module")
def trace_file(ring: RingClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("profile") / "trace.json"
    command = [*LAUNCH, "profile", "--run-dir", str(ring.run_dir.path), "--out", str(out), "--seconds"]
    for seconds in SECONDS:
        with load(ring):
            done = subprocess.run([*command, f"{seconds}"], capture_output=True, text=True, timeout=100.0, check=False)
        assert done.returncode == 0, done.stderr
        if shows_enough(Trace(out)):
            break
    return out


def shows_enough(trace: "Trace") -> bool:
    """True if a frame went from each process to the next one, and the scheduler ran many steps of all rows."""
    edges = {one["name"] for one in trace.events if one["ph"] == "s" and one["cat"] == "ring"}
    names = [one["name"] for one in trace.slices("scheduler", "sluice")]
    return edges >= RING and sum(name.endswith("decode rows=4 tokens=4") for name in names) >= MIN_STEPS


class Trace:
    def __init__(self, file: Path):
        self.events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
        names = [event for event in self.events if event["ph"] == "M" and event["name"] == "process_name"]
        self.pids = {event["args"]["name"]: event["pid"] for event in names}

    def slices(self, process: str, cat: str) -> list[dict[str, Any]]:
        pid = self.pids[process]
        return [one for one in self.events if one["ph"] == "X" and one["pid"] == pid and one.get("cat") == cat]


@pytest.fixture(scope="module")
def c_kernels() -> frozenset[str]:
    """The names of all C kernels."""
    # Imported here, because it imports torch and every worker of `-m ring` imports this file.
    from kernels.cpu.arguments import STRUCTURES

    return frozenset(STRUCTURES)


@pytest.fixture(scope="module")
def trace(trace_file: Path) -> Trace:
    return Trace(trace_file)


def test_all_processes_are_there(trace: Trace, ring: RingClient):
    processes = ring.health()["processes"]
    assert trace.pids == {name: processes[name]["pid"] for name in processes}
    for name in ("tokenizer", "scheduler", "detokenizer"):
        assert any(one["name"] == "turn" for one in trace.slices(name, "sluice")), name
    for name in ("frontend", "tokenizer", "detokenizer"):
        assert any("args" in one for one in trace.slices(name, "sluice")), f"{name} has no stacks"


def test_each_step_is_a_slice_with_its_rows_and_operators(trace: Trace, c_kernels: frozenset[str]):
    ours = trace.slices("scheduler", "sluice")
    names = Counter(one["name"].partition(" ")[0] for one in ours)
    steps = [one for one in ours if one["name"].startswith("step ")]
    assert len(steps) > 20
    assert min(names["schedule"], names["commit"], names["send"]) >= len(steps) - 1
    assert any(one["name"].endswith("decode rows=4 tokens=4") for one in steps)
    kernels = [one for one in ours if one["name"] in c_kernels]
    begins = sorted(one["ts"] for one in [*kernels, *trace.slices("scheduler", "cpu_op")])
    for step in steps[1:-1]:
        assert bisect_left(begins, step["ts"]) < bisect_right(begins, step["ts"] + step["dur"]), (
            f"{step} has no operator"
        )


def test_each_c_kernel_is_a_slice_within_its_step(trace: Trace, c_kernels: frozenset[str]):
    """Including replayed steps, which most steps of this load are."""
    ours = trace.slices("scheduler", "sluice")
    steps = sorted((one["ts"], one["ts"] + one["dur"]) for one in ours if one["name"].startswith("step "))
    kernels = [one for one in ours if one["name"] in c_kernels]
    if not kernels:
        pytest.skip("there are no C kernels here")
    names = Counter(one["name"] for one in kernels)
    assert names["paged_decode"] > 20
    assert names["layer_norm"] + names["rms_norm"] >= 2 * names["paged_decode"]
    for one in kernels:
        step = bisect_right(steps, (one["ts"] + ROUNDING_US, float("inf"))) - 1
        assert step >= 0
        assert one["ts"] + one["dur"] <= steps[step][1] + ROUNDING_US, one


def test_torch_and_we_record_the_same_steps_within_a_millisecond(trace: Trace):
    theirs = {one["name"]: one for one in trace.slices("scheduler", "user_annotation")}
    steps = [one for one in trace.slices("scheduler", "sluice") if one["name"].startswith("step ")]
    shared = [(one, theirs[one["name"]]) for one in steps if one["name"] in theirs]
    assert len(shared) >= len(steps) - 2
    # The process may be preempted between two records, so a few of many may be late, but none early.
    late = [their["ts"] - our["ts"] for our, their in shared]
    assert min(late) > -ROUNDING_US - 100.0
    assert sorted(late)[len(late) // 2] < CLOCK_US / 10
    assert sum(delay > CLOCK_US for delay in late) <= len(late) // 20


def test_arrows_lead_from_a_frame_that_is_sent_to_the_same_frame_taken(trace: Trace):
    begins = {one["id"]: one for one in trace.events if one["ph"] == "s" and one["cat"] == "ring"}
    ends = {one["id"]: one for one in trace.events if one["ph"] == "f" and one["cat"] == "ring"}
    assert begins.keys() == ends.keys()
    assert {one["name"] for one in begins.values()} >= RING
    for key, begin in begins.items():
        end = ends[key]
        sender, receiver = begin["name"].split(">")
        assert (begin["pid"], end["pid"]) == (trace.pids[sender], trace.pids[receiver])
        assert end["ts"] >= begin["ts"], "it is taken before it is sent"
    for process in trace.pids:
        slices = {(one["tid"], one["ts"]) for one in trace.slices(process, "sluice")}
        for arrow in (*begins.values(), *ends.values()):
            if arrow["pid"] == trace.pids[process]:
                assert (arrow["tid"], arrow["ts"]) in slices, "an arrow hangs in the air"


def test_slices_of_a_track_lie_one_in_another(trace: Trace):
    for process in trace.pids:
        for track in (1, 2):
            slices = [one for one in trace.slices(process, "sluice") if one["tid"] == track]
            ends: list[float] = []
            for one in sorted(slices, key=lambda one: (one["ts"], -one["dur"])):
                while ends and ends[-1] <= one["ts"] + ROUNDING_US:
                    ends.pop()
                end = one["ts"] + one["dur"]
                assert not ends or end <= ends[-1] + ROUNDING_US, (process, one)
                ends.append(end)


def test_perfettos_own_trace_processor_reads_it(trace_file: Path, trace: Trace):
    arrows = Counter(one["name"] for one in trace.events if one["ph"] == "s" and one["cat"] == "ring")
    with open_trace(trace_file) as processor:
        rows = processor.query("select name, pid from process where name is not null")
        assert trace.pids.items() <= {row.name: row.pid for row in rows}.items()
        assert not list(
            processor.query("select name from stats where value > 0 and severity in ('error', 'data_loss')")
        )
        (steps,) = processor.query("select count(*) as num from slice where name glob 'step * decode *' and depth > 0")
        assert steps.num > 20
        flows = list(processor.query(FLOWS))
        assert Counter({f"{flow.sender}>{flow.receiver}": flow.num for flow in flows}) == arrows
        assert arrows.keys() >= RING
        assert min(flow.fastest_ns for flow in flows) >= 0, "a frame is taken before it is sent"
        late_ns = sorted(row.late_ns for row in processor.query(NOTED_TWICE))
        assert len(late_ns) > 20
        assert abs(late_ns[len(late_ns) // 2]) < CLOCK_US * 1_000


def test_over_http(ring: RingClient):
    with load(ring):
        started = httpx.post(f"{ring.url}/start_profile", headers=OPERATOR, timeout=60.0)
        again = httpx.post(f"{ring.url}/start_profile", headers=OPERATOR, timeout=60.0)
        ring.generate([5, 6, 7], max_tokens=20, ignore_eos=True)
        stopped = httpx.post(f"{ring.url}/stop_profile", headers=OPERATOR, timeout=60.0)
    assert (started.status_code, again.status_code, stopped.status_code) == (200, 409, 200)
    assert started.json()["processes"] == ["detokenizer", "frontend", "scheduler", "tokenizer"]
    file = Path(stopped.json()["file"])
    try:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert set(Trace(file).pids) == {"detokenizer", "frontend", "scheduler", "tokenizer"}
    finally:
        file.unlink()
    assert httpx.post(f"{ring.url}/stop_profile", headers=OPERATOR, timeout=60.0).status_code == 409


def test_a_profile_of_one_process(ring: RingClient, tmp_path: Path):
    out = tmp_path / "trace.json"
    command = [
        *LAUNCH,
        "profile",
        "tokenizer",
        "--run-dir",
        str(ring.run_dir.path),
        "--seconds",
        "0.2",
        "--out",
        str(out),
    ]
    assert subprocess.run(command, capture_output=True, timeout=60.0, check=False).returncode == 0
    assert set(Trace(out).pids) == {"tokenizer"}
    command[3] = "tokeniser"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)
    assert done.returncode == 2
    assert "tokeniser" in done.stderr
