"""The commands that show files of frames."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.columns import pack_int32, pack_int64
from messages.frame_files import IS_SENT
from messages.frames import HEADER
from messages.ring.replies import StepReplies
from messages.ring.requests import SamplingParams, Stamps, StopSeen, TokenizeMsg
from messages.ring.timeline import Tokenized
from runtime.black_box.frame_writer import FrameWriter
from supervisor.cli.operate import operate

PROMPT = TokenizeMsg(1, 0, "sesame", b"", SamplingParams(max_tokens=5), Stamps(received_ns=77))


def step(step_id: int, text: str, committed_ns: int = 5) -> StepReplies:
    return StepReplies(step_id, pack_int64([1]), pack_int32([0]), pack_int32([44]), (text,), committed_ns=committed_ns)


def write(file: Path, process: str, sent: Sequence[tuple[str, Any]], sender: int = 7) -> None:
    file.parent.mkdir(exist_ok=True)
    writer = FrameWriter(file, process, 1 << 16)
    for number, (receiver, message) in enumerate(sent, 1):
        body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        writer.add(IS_SENT, receiver.encode(), HEADER.pack(sender, number) + body)
    writer.close()


def test_frames_are_decoded_to_one_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "frontend.1.frames", "frontend", [("tokenizer", PROMPT), ("tokenizer", b"\xc1")])
    assert operate(["decode", str(tmp_path)]) == 0
    good, bad = map(json.loads, capsys.readouterr().out.splitlines())
    assert (good["edge"], good["direction"], good["number"], good["sender"]) == ("frontend:tokenizer", "sent", 1, "7")
    assert good["message"]["prompt_text"] == "sesame"
    assert bad["message"]["hex"] == "c1"
    assert operate(["decode", "--redact", str(tmp_path / "frontend.1.frames")]) == 0
    output = capsys.readouterr().out
    assert "sesame" not in output
    assert '"prompt_text":"xxxxxx"' in output


@pytest.mark.parametrize("command", [["decode"], ["diff", "."]])
def test_what_holds_no_frames_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]):
    assert operate([*command, str(tmp_path)]) == 2
    assert "contains no files of frames" in capsys.readouterr().err


def test_times_senders_and_reports_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, committed_ns, sender in (("a", 5, 7), ("b", 99, 8)):
        timely = [("frontend", Tokenized(()))] * committed_ns
        write(
            tmp_path / name / f"detokenizer.{sender}.frames",
            "detokenizer",
            [("frontend", step(1, "x", committed_ns)), *timely, ("scheduler", StopSeen(1, 0))],
            sender,
        )
    assert operate(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == "the same: 2 frames on 2 edges\n"


def test_the_first_difference_is_shown_from_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name, texts in (("a", "xyz"), ("b", "xYz")):
        steps = [("frontend", step(number, text)) for number, text in enumerate(texts)]
        write(tmp_path / f"{name}.frames", "detokenizer", steps)
    assert operate(["diff", str(tmp_path / "a.frames"), str(tmp_path / "b.frames")]) == 1
    first, *sides = capsys.readouterr().out.splitlines()
    assert first == "frame 1 on detokenizer:frontend differs"
    assert [json.loads(side[2:])["message"]["texts"] for side in sides] == [["y"], ["Y"]]


def test_a_side_that_ends_earlier_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "a.frames", "detokenizer", [("frontend", step(1, "x"))])
    write(tmp_path / "b.frames", "detokenizer", [("frontend", step(1, "x")), ("frontend", step(2, "y"))])
    assert operate(["diff", str(tmp_path / "a.frames"), str(tmp_path / "b.frames")]) == 1
    assert "A has no more frames" in capsys.readouterr().out


def test_a_directory_that_is_no_recording_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert operate(["replay", str(tmp_path), "--", "--dtype", "float32"]) == 2
    assert "is not a recording" in capsys.readouterr().err
