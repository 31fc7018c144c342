"""Result files: where the commit comes from, and that a file is whole at any time."""

import json
from pathlib import Path

import pytest

from benchmarks import result_file
from benchmarks.result_file import name_source, read_result, read_runs, write_result


@pytest.mark.parametrize(("variable", "commit"), [("abc123", "abc123"), ("", "unknown")])
def test_outside_of_git_the_environment_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, commit: str
) -> None:
    monkeypatch.setattr(result_file, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setenv("SLUICE_COMMIT", variable)
    write_result(tmp_path / "one.json", "one", {})
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))["commit"] == commit


def test_a_write_that_fails_leaves_the_last_file(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    write_result(file, "one", {"rows": [1]})
    with pytest.raises(TypeError):
        write_result(file, "one", {"rows": [1, object()]})
    assert json.loads(file.read_text(encoding="utf-8"))["results"] == {"rows": [1]}
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [("sse2 avx2 fma", "AVX2"), ("avx2 avx512f avx512_bf16", "AVX512-BF16"), ("avx512f avx2", "AVX-512"), ("sse2", "")],
)
def test_a_machine_is_notified_by_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, vectors: str
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: {flags}\n", encoding="utf-8")
    monkeypatch.setattr(result_file, "CPU_INFO", info)
    facts = result_file.machine()
    assert (facts["cpu"], facts["vectors"]) == ("AMD EPYC", vectors)
    machine = {"machine": facts, "command": "c", "commit": "abc", "when": "2026-11-24T09:06:52+00:00"}
    assert (f"AMD EPYC with {vectors}, " if vectors else "AMD EPYC, ") in name_source(machine)


def test_a_file_can_hold_several_runs(tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    for run, rate in (("1_stream", 5), ("64_streams", 100), ("1_stream", 6)):
        write_result(Path(f"{file}#{run}"), "load", {"rate": rate})
    assert [run["results"]["rate"] for run in read_runs(tmp_path, "load")] == [6, 100]
    assert read_result(tmp_path, "load#64_streams")["results"] == {"rate": 100}
    assert read_runs(tmp_path, "none") == []
    assert list(tmp_path.iterdir()) == [file]
