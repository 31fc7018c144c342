import os
from pathlib import Path

import pytest

from runtime.black_box.image_recorder import FOLDER, MAX_FILES, ImageRecorder


def names(folder: Path) -> set[str]:
    return {file.name for file in (folder / FOLDER).iterdir()}


def test_the_least_recently_used_images_are_deleted(tmp_path: Path):
    recorder = ImageRecorder(tmp_path, 100)
    for number, digest in enumerate((b"a", b"b", b"c")):
        recorder.add(digest, bytes(40))
        os.utime(tmp_path / FOLDER / digest.hex(), ns=(number, number))
    assert names(tmp_path) == {b"b".hex(), b"c".hex()}
    recorder.add(b"b", bytes(40))
    recorder.add(b"d", bytes(40))
    assert names(tmp_path) == {b"b".hex(), b"d".hex()}
    recorder.add(b"e", bytes(101))
    assert names(tmp_path) == set()


def test_their_number_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert MAX_FILES >= 1000
    monkeypatch.setattr("runtime.black_box.image_recorder.MAX_FILES", 3)
    recorder = ImageRecorder(tmp_path, 1000)
    for number in range(9):
        recorder.add(bytes([number]), b"x")
    assert len(names(tmp_path)) == 3


def test_only_this_user_may_read_them(tmp_path: Path):
    ImageRecorder(tmp_path, 100).add(b"a", b"x")
    assert (tmp_path / FOLDER).stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    recorder = ImageRecorder(tmp_path / "gone", 100)
    for digest in (b"a", b"b"):
        recorder.add(digest, b"x")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["images are not recorded"]
