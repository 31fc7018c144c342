"""The benchmark of a server under several loads, with a trivial server in place of ours."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import bench_http
from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError


def test_loads_follow_one_another_on_one_server(
    paced_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []

    @contextmanager
    def start(
        module: str, arguments: Sequence[str], deadline_s: float, more: Sequence[str]
    ) -> Iterator[tuple[None, Target]]:
        started.append(arguments)
        model_dir = Path(arguments[arguments.index("--model") + 1])
        assert {file.name for file in model_dir.iterdir()} >= {
            "config.json",
            "generation_config.json",
            "tokenizer.json",
        }
        Path(more[1]).write_text("attend[bf16]\n", encoding="utf-8")
        yield None, paced_target

    monkeypatch.setattr(bench_http, "server_with_scheduler", start)
    monkeypatch.setattr(bench_http, "TOKENS", "6")
    monkeypatch.setattr(bench_http, "MAX_REQUESTS", 8)
    file = tmp_path / "http.json"
    assert bench_http.main(["--concurrency", "1", "3", "--json", str(file), "--enforce-eager"]) == 0
    assert len(started) == 1
    assert list(started[0][-3:]) == ["--device", "cuda", "--enforce-eager"]
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert results["degraded"] == {}
    assert (results["compiled_at_load"], results["compiled_under_load"]) == (1, [])
    loads = results["loads"]
    assert [load["settings"]["concurrency"] for load in loads] == [1, 3]
    assert [load["report"]["outcomes"] for load in loads] == [{"ok": 8}, {"ok": 8}]


def test_a_kernel_that_is_compiled_under_load_fails_the_benchmark(
    paced_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[Path] = []

    @contextmanager
    def start(*arguments: Sequence[str]) -> Iterator[tuple[None, Target]]:
        notes.append(Path(arguments[-1][1]))
        yield None, paced_target

    def run_load(settings: argparse.Namespace) -> object:
        notes[0].write_text("draw_row_kernel[8192]\n", encoding="utf-8")
        return actual(settings)

    actual = bench_http.bench_server.run_load
    monkeypatch.setattr(bench_http, "server_with_scheduler", start)
    monkeypatch.setattr(bench_http.bench_server, "run_load", run_load)
    file = tmp_path / "http.json"
    assert bench_http.main(["--quick", "--json", str(file)]) == 1
    assert "compiled under load: draw_row_kernel[8192]" in capsys.readouterr().err
    assert json.loads(file.read_text(encoding="utf-8"))["results"]["compiled_under_load"] == ["draw_row_kernel[8192]"]


def test_a_server_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(*arguments: object) -> None:
        raise ServerUnavailableError("the server exited with 1:\nno CUDA device")

    monkeypatch.setattr(bench_http, "server_with_scheduler", start)
    assert bench_http.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err
