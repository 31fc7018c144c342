"""Results survive crashes, whole and once."""

import json
import os
from pathlib import Path

import pytest

from extras.batches.results import LineFailure, Results, ResultsError
from frontend.http.in_process import Reply

OK = Reply(200, "id-1", b'{"text":"\xc3\xa9"}')
BAD = Reply(400, "id-2", b'{"error":{}}')


def loaded(output: Path, errors: Path) -> Results:
    results = Results(output, errors)
    try:
        results.load()
    except ResultsError:
        results.close()
        raise
    return results


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()]


def test_failed_lines_go_to_the_other_file(tmp_path: Path):
    output, errors = tmp_path / "out", tmp_path / "err"
    results = loaded(output, errors)
    results.add("a", OK)
    results.add("b", BAD)
    results.add("c", LineFailure("batch_expired", "too late"))
    assert not results.is_synced
    results.sync()
    results.close()
    whole, failed, expired = (json.loads(line) for path in (output, errors) for line in path.read_text().splitlines())
    assert whole["response"] == {"status_code": 200, "request_id": "id-1", "body": {"text": "é"}}
    assert (failed["response"]["status_code"], failed["error"]) == (400, None)
    assert (expired["response"], expired["error"]["code"]) == (None, "batch_expired")
    again = loaded(output, errors)
    assert (again.answered, again.num_completed, again.num_failed) == ({"a", "b", "c"}, 1, 2)
    again.close()


def test_a_file_that_was_torn_anywhere_continues_with_whole_lines(tmp_path: Path):
    path = tmp_path / "out"
    results = loaded(path, path)
    for name in "abc":
        results.add(name, OK)
    results.close()
    whole = path.read_bytes()
    for size in (*range(0, len(whole), 9), whole.index(b"\n"), whole.index(b"\n") + 1):
        for tail in (b"", b"\0" * 5):
            path.write_bytes(whole[:size] + tail)
            results = loaded(path, path)
            kept = whole[:size].count(b"\n")
            assert results.answered == set("abc"[:kept])
            results.add("new", OK)
            results.close()
            assert ids(path) == [*"abc"[:kept], "new"]


@pytest.mark.parametrize("text", ["my notes", "my notes\n", '{"id":"batch_req_1"}\n', '{"id": 1, "other": 2}'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str):
    path = tmp_path / "out"
    path.write_text(text)
    with pytest.raises(ResultsError, match="line 1 is no result"):
        loaded(path, path)
    assert path.read_text() == text


def test_one_process_alone_writes(tmp_path: Path):
    path = tmp_path / "out"
    first = loaded(path, path)
    with pytest.raises(ResultsError, match="another process"):
        Results(path, path)
    first.close()
    Results(path, path).close()


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "out"
    results = loaded(path, path)
    results.add("a", OK)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:9]))
        with pytest.raises(OSError, match="only a part"):
            results.add("b", OK)
    results.add("c", OK)
    results.close()
    assert ids(path) == ["a", "c"]
    assert results.answered == {"a", "c"}
