"""A profile comes from the engine's machine in parts: whole, on the head's clock, and not larger than it may be."""

import os
from pathlib import Path

import msgspec
import pytest

from extras.remote import profiles
from extras.remote.messages import FileQuestion
from extras.remote.profiles import ProfileFetch, read_part
from runtime.profiling import ProcessProfile

AHEAD_NS = 10**12
NAME = "scheduler-2-7-5.profile"
TRACE = b'{"traceEvents": []}' * 30


class Fetched:
    """The two ends of a fetch, and how many parts have passed between them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(profiles, "PART_BYTES", 64)
        self.there = folder / "there"
        self.there.mkdir()
        self.num_parts = 0
        self.warnings: list[str] = []
        self.fetch = ProfileFetch(NAME, folder / "here", self._answer)

    def _answer(self, question: FileQuestion) -> None:
        self.num_parts += 1
        warning = self.fetch.receive(read_part(self.there, question, AHEAD_NS))
        self.warnings += [warning] if warning else []

    def write(self) -> None:
        trace = self.there / "scheduler-2-7-5.torch.json"
        trace.write_bytes(TRACE)
        slices, notes = [("turn", 5, 6)], [("UserMsg uid 1", 5, 6, 3, 4)]
        profile = ProcessProfile(
            "scheduler-2", 7, 1, 5, 9, 100, slices, {"detokenizer": notes}, notes, [], 0, str(trace)
        )
        (self.there / NAME).write_bytes(msgspec.msgpack.encode(profile))

    def read(self) -> ProcessProfile:
        return msgspec.msgpack.decode(self.fetch.path.read_bytes(), type=ProcessProfile)


def test_a_profile_is_fetched_once_it_is_written_and_nothing_of_it_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    both = Fetched(tmp_path, monkeypatch)
    both.fetch.look()
    assert (both.num_parts, both.fetch.path.exists()) == (1, False)
    both.write()
    both.fetch.look()
    profile = both.read()
    assert Path(profile.torch_trace).read_bytes() == TRACE
    assert both.num_parts > len(TRACE) // 64
    moved = 5 + AHEAD_NS, 6 + AHEAD_NS
    assert (profile.pid, profile.began_ns, profile.ended_ns) == (os.getpid(), 5 + AHEAD_NS, 9 + AHEAD_NS)
    assert profile.began_ns + profile.epoch_offset_ns == 5 + 100, "the same time of day"
    assert profile.slices == [("turn", *moved)]
    assert profile.received == profile.sent["detokenizer"] == [("UserMsg uid 1", *moved, 3, 4)]
    assert not list(both.there.iterdir())
    both.fetch.look()
    assert not both.warnings


def test_a_trace_that_is_too_large_is_left_out_and_the_operator_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    both = Fetched(tmp_path, monkeypatch)
    both.write()
    monkeypatch.setattr(profiles, "MAX_TRACE_BYTES", len(TRACE) - 1)
    both.fetch.look()
    assert both.read().torch_trace == ""
    assert "torch's trace is left out: it has 570 bytes; profile for fewer seconds" in both.warnings[0]


def test_no_other_file_can_be_requested(tmp_path: Path):
    (tmp_path / "profiles").mkdir()
    (tmp_path / "join.key").write_bytes(b"secret")
    assert read_part(tmp_path / "profiles", FileQuestion("../join.key", 0), 0).num_bytes == -1
    assert (tmp_path / "join.key").exists()
