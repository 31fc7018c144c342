"""`launch.py whatif` as people use it: its output, and its errors for wrong files and settings."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from extras.whatif.__main__ import main
from supervisor.cli.operate import operate
from tests.extras.whatif.known_server import calibration, measured_steps

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "steps.json").write_bytes(msgspec.json.encode(calibration()))
    rows = [
        {"timestamp": 50 * index, "input_length": 10 + index % 30, "output_length": 1 + index % 9, "hash_ids": [index]}
        for index in range(40)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def run(*arguments: str, trace: str = "trace.jsonl", steps: str = "steps.json") -> tuple[int, str, str]:
        code = main([str(tmp_path / trace), "--steps", str(tmp_path / steps), *arguments])
        return code, *capsys.readouterr()

    return run


def test_every_combination_gets_a_line_and_one_is_recommended(command: Command):
    code, out, _ = command("--max-num-seqs", "1,4", "--num-pages", "16,32", "--prefix-caching", "on,off")
    assert code == 0
    lines = out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("seqs"))
    settings = [(line.split()[0], line.split()[1], "off" in line) for line in lines[first + 1 : first + 9]]
    assert settings == [(seqs, pages, off) for seqs in "14" for pages in ("16", "32") for off in (False, True)]
    assert "recommended: --max-num-seqs 4 " in out
    assert "40 requests over 2 s" in out
    assert "extrapolated" not in out


def test_json_holds_all_of_it(command: Command):
    code, out, _ = command("--max-num-seqs", "1,2", "--ttft-slo", "0.2", "--num-requests", "20", "--json")
    assert code == 0
    found = json.loads(out)
    assert [one["setting"]["max_num_seqs"] for one in found["outcomes"]] == [1, 2]
    rates = [one["capacity"]["requests_per_s"] for one in found["capacities"]]
    assert 0 < rates[0] <= rates[1]
    assert found["recommendation"].startswith("--max-num-seqs ")
    assert found["outcomes"][0]["num_requests"] == 20


def test_capacities_are_shown_with_their_curve(command: Command):
    code, out, _ = command("--ttft-slo", "0.2")
    assert code == 0
    assert "requests a second until p99 TTFT is more than 0.2 s" in out
    assert "with a p99 TTFT of at most 0.2 s" in out


def test_steps_larger_than_any_that_was_measured_are_notified(command: Command):
    code, out, _ = command("--max-num-seqs", "4,8", "--trace-speed", "50", "--max-num-batched-tokens", "16,32")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("extrapolated: ")]
    rows, tokens = "steps of 6 rows, measured are up to 4", "steps of 32 tokens, measured are up to 14"
    assert lines == [
        f"extrapolated: --max-num-seqs 4 --num-pages 64 --max-num-batched-tokens 32: {tokens}",
        f"extrapolated: --max-num-seqs 8 --num-pages 64 --max-num-batched-tokens 32: {rows}, {tokens}",
    ]


def test_the_pipeline_is_added(command: Command):
    _, plain, _ = command("--json")
    _, added, _ = command("--json", "--pipeline-ms", "100")
    before, after = (json.loads(text)["outcomes"][0]["ttft"]["p50_ms"] for text in (plain, added))
    assert after == pytest.approx(before + 100)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("no json", "is not what `launch.py calibrate` writes"),
        ('{"model": "x"}', "is not what `launch.py calibrate` writes: .*missing required field"),
        (None, "cannot be read .*`launch.py calibrate --out"),
        (msgspec.json.encode(calibration(steps=measured_steps()[:3])).decode(), "3 measured steps are too few"),
    ],
    ids=["no json", "fields", "missing", "too few"],
)
def test_bad_files_of_steps(command: Command, tmp_path: Path, content: str | None, why: str):
    if content is not None:
        (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    code, out, err = command(steps="bad.json")
    assert (code, out) == (2, "")
    assert re.search(f"^launch.py whatif: .*{why}", err)


def test_a_trace_that_is_not_there_and_a_setting_that_cannot_hold_a_request(command: Command):
    code, _, err = command(trace="none.csv")
    assert (code, err.endswith("none.csv does not exist\n")) == (2, True)
    code, _, err = command("--skip-requests", "3")
    assert (code, "--skip-requests is for recordings" in err) == (2, True)
    code, _, err = command("--num-pages", "32,15")
    assert code == 2
    assert "--num-pages 15 holds 60 tokens" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-num-seqs", "0"),
        ("--num-pages", "a"),
        ("--prefix-caching", "maybe"),
        ("--ttft-slo", "0"),
        ("--trace-speed", "inf"),
        ("--max-num-seq", "4"),
    ],
    ids=" ".join,
)
def test_wrong_values_are_refused_before_anything_runs(command: Command, arguments: tuple[str, ...]):
    with pytest.raises(SystemExit) as ended:
        command(*arguments)
    assert ended.value.code == 2


def test_the_launcher_runs_it_from_any_directory(tmp_path: Path):
    launcher = Path(__file__).resolve().parents[3] / "launch.py"
    (tmp_path / "trace.csv").touch()
    command = [sys.executable, str(launcher), "whatif", "trace.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("launch.py whatif: steps.json cannot be read")


@pytest.mark.parametrize("words", [["whatif", "none"], ["replay", "none"]], ids=" ".join)
def test_a_directory_that_is_not_there_is_named(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert (main(words[1:]) if words[0] == "whatif" else operate(words)) == 2
    assert capsys.readouterr().err == f"launch.py {words[0]}: none does not exist\n"
