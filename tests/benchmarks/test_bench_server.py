"""The command as a person runs it: table, JSON, exit codes, Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.bench_server import main
from benchmarks.load.connection import Target
from benchmarks.load.report import Report

QUICK = ["--num-requests", "12", "--concurrency", "4", "--output-tokens", "5", "--warmup", "1"]


def test_a_closed_loop_prints_a_table_and_writes_a_result(
    paced_target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "server.json"
    assert main(["--url", paced_target.origin, *QUICK, "--ignore-eos", "--json", str(file)]) == 0
    assert "12 ok in" in capsys.readouterr().out
    document = json.loads(file.read_text(encoding="utf-8"))
    assert document["name"] == "server"
    assert document["results"]["model"] == "paced"
    settings = document["results"]["settings"]
    assert (settings["concurrency"], settings["ignore_eos"], settings["seed"]) == (4, True, 0)
    assert settings["output_tokens"] == {"low": 5, "high": 5}
    report = msgspec.convert(document["results"]["report"], Report)
    assert report.outcomes == {"ok": 12}
    assert (report.prompt_tokens, report.output_tokens) == (12 * 128, 60)
    assert report.latencies["inter-token"].count == 12 * 4
    assert report.latencies["server queue"].count == 12


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "200", "--input-tokens", "4:9", "--output-tokens", "2:4", "--num-requests", "20"],
        [*QUICK, "--shared-prefix", "64"],
        [*QUICK, "--cache-salt", ""],
        [*QUICK, "--max-seconds", "5", "--request-timeout-s", "5", "--temperature", "0.8", "--seed", "3"],
    ],
)
def test_other_ways_to_load(paced_target: Target, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", paced_target.origin, *arguments]) == 0
    assert " ok in" in capsys.readouterr().out


def test_a_trace_is_replayed(paced_target: Target, shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = shared_dir / "traces" / "mooncake" / "conversation_trace.jsonl"
    arguments = ["--trace", str(trace), "--num-requests", "20", "--trace-speed", "50", "--trace-scale", "0.005"]
    assert main(["--url", paced_target.origin, *arguments]) == 0
    output = capsys.readouterr().out
    assert "20 requests of conversation_trace.jsonl, 50x as fast, one token is 0.005" in output
    assert "20 ok in" in output


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["--input-tokens", "5000"], 2, "the server's context is 4096"),
        (["--prompts", "gsm8k", "--shared-prefix", "10"], 2, "--shared-prefix"),
        (["--prompts", "gsm8k", "--prompts-dir", "/not/here"], 2, "--prompts-dir"),
        (["--trace", "/not/here.jsonl"], 2, "does not exist"),
        (["--url", "https://127.0.0.1"], 2, "--url"),
        (["--url", "http://127.0.0.1:1"], 1, "nothing answers"),
    ],
)
def test_what_cannot_be_measured_says_why(
    paced_target: Target, arguments: list[str], code: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--url", paced_target.origin, *arguments]) == code
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--rate", "0"], ["--concurrency", "0"], ["--input-tokens", "9:3"], ["--rate", "1", "--concurrency", "1"]],
)
def test_wrong_flags_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_ctrl_c_prints_what_has_been_measured(paced_target: Target) -> None:
    command = [sys.executable, "-m", "benchmarks.bench_server", "--url", paced_target.origin, "--warmup", "0"]
    lengths = ["--input-tokens", "8", "--output-tokens", "1:400", "--concurrency", "4", "--num-requests", "1000000"]
    with subprocess.Popen(
        [*command, *lengths, "--show-progress"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        seen = ""
        while not re.search(r"\b[1-9]\d*/1000000", seen):
            seen += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.startswith("cut off: this is what has been measured so far\n")
    assert "4 unfinished" in output
    assert " ok" in output
