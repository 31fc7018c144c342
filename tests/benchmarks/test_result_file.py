"""Result files: where the commit comes from, and that a file is whole at any time."""

import json
from pathlib import Path

import pytest

from benchmarks import result_file
from benchmarks.result_file import write_result


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
