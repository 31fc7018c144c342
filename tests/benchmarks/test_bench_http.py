"""The benchmark of a server under several loads, with a trivial server in place of ours."""

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
    def start(arguments: Sequence[str], deadline_s: float) -> Iterator[tuple[None, Target]]:
        started.append(arguments)
        model_dir = Path(arguments[arguments.index("--model") + 1])
        assert {file.name for file in model_dir.iterdir()} >= {"config.json", "tokenizer.json"}
        yield None, paced_target

    monkeypatch.setattr(bench_http, "started_server", start)
    monkeypatch.setattr(bench_http, "TOKENS", "6")
    file = tmp_path / "http.json"
    assert bench_http.main(["--concurrency", "1", "3", "--json", str(file), "--enforce-eager"]) == 0
    assert len(started) == 1
    assert list(started[0][-3:]) == ["--device", "cuda", "--enforce-eager"]
    results = json.loads(file.read_text(encoding="utf-8"))["results"]
    assert results["degraded"] == {}
    loads = results["loads"]
    assert [load["settings"]["concurrency"] for load in loads] == [1, 3]
    assert [load["report"]["outcomes"] for load in loads] == [{"ok": 8}, {"ok": 12}]


def test_a_server_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(arguments: Sequence[str], deadline_s: float) -> None:
        raise ServerUnavailableError("the server exited with 1:\nno CUDA device")

    monkeypatch.setattr(bench_http, "started_server", start)
    assert bench_http.main([]) == 1
    assert "no CUDA device" in capsys.readouterr().err
