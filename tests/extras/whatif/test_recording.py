"""A recording of a simulated server holds its requests and steps, so that its own settings give the same again."""

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from extras.whatif.__main__ import main
from extras.whatif.cost_model import MeasuredStep, size_of_step
from extras.whatif.drive import ServedRequests, serve
from extras.whatif.outcome import simulate, summarize
from extras.whatif.recording import read_recording
from extras.whatif.self_check import find_errors
from extras.whatif.settings import Setting, make_config
from extras.whatif.simulation import SimulatedRunner, SimulatedStep
from extras.whatif.traces import Arrival
from messages.columns import pack_int32, pack_int64, unpack_int64
from messages.errors import SluiceError, UsageError
from messages.frame_files import IS_SENT, FrameReader, Record, write_frames
from messages.frames import HEADER
from messages.ring.replies import DetokenizeMsg, StepReplies, UserReply
from messages.ring.requests import SamplingParams, UserMsg
from messages.ring.steps import Batch
from messages.ring.timeline import ScheduleReport
from runtime.black_box.frame_writer import FrameWriter
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.step_times import StepTimes
from supervisor.manifest import make_manifest, write_manifest
from tests.extras.whatif.known_server import MODEL, arrival, calibration

SETTING = Setting(max_num_seqs=3, num_pages=17, max_num_batched_tokens=16)
SECOND = 1000
"""The number of uids before those of the second engine."""

REPLY_NS = 2_000_000
"""From a commit to the frontend."""

WAKE_S = 0.0004
"""Until an idle scheduler runs."""

FIRST = Arrival(list(range(9000, 9010)), 6, 9.0, pack_int32(range(70, 76)), "salt")
REPEATS = pack_int32([*range(5), 70, *range(5), 71, *range(5), 72, 73, 74])
ARRIVALS = [
    Arrival(list(range(8)), 20, 0.0, REPEATS),
    *(arrival(range(100 * n, 100 * n + 3 + 11 * (n % 4)), 2 + 9 * (n % 3), 0.05 * n) for n in range(24)),
    FIRST,  # after an idle time, and then one that continues from its output
    Arrival(
        [*FIRST.prompt_ids, *range(70, 76), 5], 3, 10.0, pack_int32(range(80, 83)), "salt", client="10.0.0.2", share=3
    ),
]


class RecordedRunner(SimulatedRunner):
    """Writes what its scheduler receives and sends into files, with stamps of the simulated clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, can_overlap: bool = False, late_ns: int = 0):
        super().__init__(MODEL.predict, SETTING, can_overlap, ARRIVALS)
        self.batches: list[Batch] = []
        self.woken_at: set[int] = set()
        """The indices of steps for which the scheduler woke."""
        self.delay_ns = 1  # a stamp of 0 stands for none
        self._files = {
            name: FrameWriter(folder / f"{name}.1.frames", name, 1 << 20) for name in ("scheduler", "frontend")
        }
        self._numbers = itertools.count()
        receive, pop_replies = Scheduler.receive, Scheduler.pop_replies

        def record_received(scheduler: Scheduler, message: Any) -> None:
            if isinstance(message, UserMsg) and scheduler.is_idle:
                self.clock.wait_until(self.clock() + WAKE_S)
                self.woken_at.add(len(self.batches))
            self._write("scheduler", 0, "scheduler", message)
            receive(scheduler, message)

        def record_replies(scheduler: Scheduler) -> list[Any]:
            replies = pop_replies(scheduler)
            for reply in replies:
                self._write("scheduler", IS_SENT, "detokenizer", reply)
                if isinstance(reply, DetokenizeMsg):
                    reply_ns = REPLY_NS + late_ns * (reply.step_id % 4 == 0)
                    self.delay_ns += reply_ns
                    ended = {row.uid for row in reply.finished}
                    going_on = pack_int64([uid for uid in unpack_int64(reply.uids) if uid not in ended])
                    finals = tuple(UserReply(uid, 0, "length", token_ids=pack_int32([7])) for uid in ended)
                    step = StepReplies(reply.step_id, going_on, b"", b"", (), finals, committed_ns=reply.committed_ns)
                    self._write("frontend", 0, "frontend", step)
                    self.delay_ns -= reply_ns
            return replies

        monkeypatch.setattr(Scheduler, "receive", record_received)
        monkeypatch.setattr(Scheduler, "pop_replies", record_replies)
        monkeypatch.setattr(time, "monotonic_ns", lambda: round(self.clock() * 1e9) + self.delay_ns)

    def launch(self, batch: Batch) -> SimulatedStep:
        self.batches.append(batch)
        return super().launch(batch)

    def write_cut_frame(self) -> None:
        self._files["scheduler"].add(0, b"scheduler", HEADER.pack(1, next(self._numbers)))

    def _write(self, process: str, flags: int, receiver: str, message: Any) -> None:
        frame = HEADER.pack(1, next(self._numbers)) + msgspec.msgpack.encode(message)
        self._files[process].add(flags, receiver.encode(), frame)


def record(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    can_overlap: bool = False,
    late_ns: int = 0,
    num_speculative_tokens: int = 0,
) -> tuple[ServedRequests, RecordedRunner]:
    """Returns the recorded requests; every fourth step reaches the frontend `late_ns` later than the others."""
    config = make_config(SETTING, calibration(num_speculative_tokens=num_speculative_tokens))
    write_manifest(folder, make_manifest(config))
    runner = RecordedRunner(folder, monkeypatch, can_overlap, late_ns)
    runner.write_cut_frame()
    served = serve(ARRIVALS, config, runner, runner.clock, StepTimes())
    return served, runner


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_the_steps_of_a_recording_are_those_that_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_drafts: int):
    served, runner = record(tmp_path, monkeypatch, num_speculative_tokens=num_drafts)
    assert served.gauges["preemptions"]
    assert bool(served.gauges["accepted_tokens"]) == bool(num_drafts)
    assert (served.gauges["draft_tokens"] > served.gauges["accepted_tokens"]) == bool(num_drafts)
    sizes = [size_of_step(batch) for batch in runner.batches]
    found = read_recording(tmp_path).calibration
    assert [step.size for step in found.steps] == sizes
    assert len(runner.woken_at) > 1
    expected = [MODEL.predict(size) + WAKE_S * (index in runner.woken_at) for index, size in enumerate(sizes)]
    assert [step.seconds for step in found.steps] == pytest.approx(expected)
    assert found.pipeline_s == pytest.approx(REPLY_NS / 1e9)
    known = calibration(max_num_seqs=3, num_pages=17, num_speculative_tokens=num_drafts)
    for name in (
        "model",
        "num_speculative_tokens",
        "max_model_len",
        "block_size",
        "num_pages",
        "max_num_seqs",
        "max_num_batched_tokens",
    ):
        assert getattr(found, name) == getattr(known, name)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_its_own_settings_give_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], num_drafts: int
):
    served, _ = record(tmp_path, monkeypatch, num_speculative_tokens=num_drafts)
    monkeypatch.undo()
    assert main([str(tmp_path), "--json"]) == 0
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    expected = msgspec.to_builtins(summarize(served, SETTING, REPLY_NS / 1e9))
    assert outcome["setting"] == expected["setting"]
    assert outcome["num_preemptions"] == expected["num_preemptions"]
    assert outcome["prefix_hit_rate"] == expected["prefix_hit_rate"] > 0
    for latency in ("ttft", "inter_token", "e2e"):
        assert outcome[latency] == pytest.approx(expected[latency], rel=0.02)


def test_the_error_of_its_own_settings_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    served, _ = record(tmp_path, monkeypatch)
    monkeypatch.undo()
    recording = read_recording(tmp_path)
    reply_s = REPLY_NS / 1e9
    assert [times_s[0] for times_s in recording.token_times_s] == pytest.approx(
        (served.first_s - served.arrived_s + reply_s).tolist()
    )
    assert np.sort(np.concatenate([np.diff(times_s) for times_s in recording.token_times_s])) == pytest.approx(
        np.sort(served.gaps_s)
    )
    errors = find_errors(recording, MODEL, len(ARRIVALS))
    assert list(errors) == [
        f"{name} {part}" for name in ("TTFT", "inter-token", "end to end") for part in ("p50", "p90")
    ]
    assert list(errors.values()) == pytest.approx([0.0] * 6, abs=0.02)
    steps = [MeasuredStep(step.size, 2 * step.seconds) for step in recording.calibration.steps]
    slow = recording._replace(calibration=msgspec.structs.replace(recording.calibration, steps=steps))
    assert find_errors(slow, MODEL, len(ARRIVALS))["inter-token p50"] == pytest.approx(1.0, abs=0.02)
    assert main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert re.search(r"off by: TTFT p50 [+-]\d+%, .*end to end p90 [+-]\d+%; expect", output)
    assert "\nrecommended: --max-num-seqs" in output
    monkeypatch.setattr("extras.whatif.__main__.find_errors", lambda *_: {"TTFT p50": 0.1, "end to end p90": 1.69})
    assert main([str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "\nnothing is recommended: for the recording's own settings end to end p90 is +169% off" in output
    assert "recommended: --" not in output
    assert main([str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["recommendation"], result["notes"][-1][:23]) == (None, "nothing is recommended:")


def test_what_the_way_back_varies_by_is_found_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record(tmp_path, monkeypatch, late_ns=20_000_000)
    monkeypatch.undo()
    recording = read_recording(tmp_path)
    jitter_s = recording.calibration.jitter_s
    late = [index for index, one in enumerate(jitter_s) if round(one, 6) == 0.02]
    assert {round(one, 6) for one in jitter_s} == {0.0, 0.02}
    assert np.median(np.diff(late)) == 4  # in the order of the steps
    steady = msgspec.structs.replace(recording.calibration, jitter_s=(0.0,))
    alone = [arrival(range(10), 40)]
    drawn, same = (simulate(alone, one, MODEL, SETTING).inter_token for one in (recording.calibration, steady))
    assert (same.p50_ms, same.p99_ms) == pytest.approx((10.0, 10.0))
    assert drawn.p99_ms == pytest.approx(30.0)


def test_tokens_that_no_one_waits_for_count_from_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SamplingParams, "needs_token_delivery", False)
    served, _ = record(tmp_path, monkeypatch, late_ns=20_000_000)
    recording = read_recording(tmp_path)
    assert len(recording.calibration.jitter_s) <= len(ARRIVALS)  # of ends, which are sent at once
    first_s = np.array([times_s[0] for times_s in recording.token_times_s])
    # If another request ended in the same step, its end was sent at once, and so later than its commit.
    assert np.median(first_s - (served.first_s - served.arrived_s)) == pytest.approx(0.0, abs=1e-6)


def test_a_cold_start_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    _, runner = record(tmp_path, monkeypatch)
    monkeypatch.undo()
    recording = read_recording(tmp_path, len(ARRIVALS) - 2)  # what is left comes after an idle time
    assert [arrival.num_output for arrival in recording.arrivals] == [6, 3]
    sizes = [size_of_step(batch) for batch in runner.batches]
    assert [step.size for step in recording.calibration.steps] == sizes[-len(recording.calibration.steps) :]
    assert len(recording.calibration.steps) == 9
    assert main([str(tmp_path), "--skip-requests", "2"]) == 0
    assert f"{len(ARRIVALS) - 2} requests over" in capsys.readouterr().out
    assert main([str(tmp_path), "--skip-requests", "100"]) == 2
    assert "holds no request" in capsys.readouterr().err


def test_each_engine_serves_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A second engine has served the same at the same times: what each request gets is as it was with one."""
    record(tmp_path, monkeypatch)
    monkeypatch.undo()
    assert main([str(tmp_path), "--json"]) == 0
    (alone,) = json.loads(capsys.readouterr().out)["outcomes"]
    copy_to_second_engine(tmp_path)
    assert main([str(tmp_path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (both,) = result["outcomes"]
    assert "2 engines: each request is served by the one that it had; settings are of each" in result["notes"]
    assert both["num_requests"] == 2 * alone["num_requests"]
    assert both["num_preemptions"] == 2 * alone["num_preemptions"] > 0
    assert both["waits"] == {lack: 2 * count for lack, count in alone["waits"].items()}
    for name in ("seconds", "prefix_hit_rate"):
        assert both[name] == pytest.approx(alone[name], rel=1e-3)
    for latency in ("ttft", "inter_token", "e2e"):
        assert both[latency]["p50_ms"] == pytest.approx(alone[latency]["p50_ms"], rel=0.02)


def copy_to_second_engine(folder: Path) -> None:
    """Writes what the scheduler has received and sent as `scheduler-2`'s, under other uids."""
    reader = FrameReader(folder / "scheduler.1.frames")
    reader.pid, reader.process = 2, "scheduler-2"
    frames: list[tuple[Record, bytes]] = []
    for one in reader.read():
        if one.body:
            frames.append((one, one.frame[: HEADER.size] + msgspec.msgpack.encode(of_second_engine(one.decode()))))
    write_frames(folder / "scheduler-2.2.frames", reader, frames)


def of_second_engine(message: Any) -> Any:
    if isinstance(message, ScheduleReport):
        chunks = tuple(msgspec.structs.replace(chunk, uid=chunk.uid + SECOND) for chunk in message.chunks)
        return msgspec.structs.replace(message, chunks=chunks, engine=2)
    if isinstance(message, DetokenizeMsg):
        uids = pack_int64([uid + SECOND for uid in unpack_int64(message.uids)])
        finished = tuple(msgspec.structs.replace(row, uid=row.uid + SECOND) for row in message.finished)
        return msgspec.structs.replace(message, uids=uids, finished=finished, engine=2)
    if isinstance(message, UserMsg):
        return msgspec.structs.replace(message, uid=message.uid + SECOND, engine=2)
    return message


def test_of_a_recording_the_first_requests_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    record(tmp_path, monkeypatch)
    monkeypatch.undo()
    assert main([str(tmp_path), "--num-requests", "5", "--trace-speed", "2"]) == 0
    assert "5 requests over 0 s" in capsys.readouterr().out
    assert main([str(tmp_path), "--trace-scale", "2"]) == 2
    assert "--trace-scale is for traces" in capsys.readouterr().err


def test_steps_that_overlap_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record(tmp_path, monkeypatch, can_overlap=True)
    with pytest.raises(UsageError, match=r"overlap.*launch.py calibrate"):
        read_recording(tmp_path)


def test_directories_that_are_no_recordings(tmp_path: Path):
    with pytest.raises(SluiceError, match="is not a recording"):
        read_recording(tmp_path)
    write_manifest(tmp_path, make_manifest(make_config(SETTING, calibration())))
    with pytest.raises(SluiceError, match="no files of frames"):
        read_recording(tmp_path)
    FrameWriter(tmp_path / "scheduler.1.frames", "scheduler", 1 << 16).close()
    with pytest.raises(SluiceError, match="holds no request"):
        read_recording(tmp_path)
