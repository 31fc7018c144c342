"""The batch directory: what is in it is whole, found again, and goes in time."""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from extras.batches import store as store_module
from extras.batches import uploads
from extras.batches.records import BatchRecord
from extras.batches.store import KEEP_S, ORPHAN_S, BatchStore
from messages.errors import BootError, RequestError


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return BatchStore(tmp_path / "batches", 10_000)


def upload(store: BatchStore, text: str = "{}\n", keep_s: int = KEEP_S) -> str:
    with closing(store.begin_upload()) as content:
        content.write(text.encode())
        return store.add_file(content, "in.jsonl", "batch", keep_s).id


def make_batch(store: BatchStore) -> BatchRecord:
    now_s = int(time.time())
    record = BatchRecord(
        id="",
        endpoint="/v1/completions",
        input_file_id=upload(store),
        completion_window="24h",
        created_at=now_s,
        expires_at=now_s + 60,
    )
    return store.add_batch(record)


def test_a_file_is_found_listed_and_deleted(store: BatchStore):
    first, second = upload(store, "one"), upload(store, "other")
    assert store.find_file(first).bytes == 3
    assert store.content(first).read_text() == "one"
    assert [record.id for record in store.list_files()] == [second, first]
    store.delete_file(first)
    assert [record.id for record in store.list_files()] == [second]
    for name in (first, "../batches/x", "file-" + "0" * 24, ""):
        with pytest.raises(RequestError) as error:
            store.delete_file(name)
        assert error.value.info.status == 404


def test_links_in_the_directory_are_not_followed(store: BatchStore, tmp_path: Path):
    """They neither show nor change a file elsewhere, and count as themselves."""
    secret = tmp_path / "secret"
    secret.write_text("s" * 20_000)
    listed, asked = upload(store), upload(store)
    store.content(asked).unlink()
    store.content(asked).symlink_to(secret)
    record = store.content(listed).with_suffix(".json")
    record.rename(tmp_path / "record")
    record.symlink_to(tmp_path / "record")
    for file_id in (asked, listed):
        with pytest.raises(RequestError, match="there is no file"):
            store.find_file(file_id)
    batch = make_batch(store)
    with pytest.raises(RequestError, match="there is no file"):
        store.add_batch(msgspec.structs.replace(batch, input_file_id=asked))
    for path in store.results(batch):
        path.symlink_to(secret)
    assert not any(path.is_symlink() for path in store.results(batch))
    with closing(store.begin_upload()) as content:
        content.reserve(5000)
    assert secret.read_text() == "s" * 20_000


def test_only_this_user_may_read_it(store: BatchStore):
    for folder in (store.content("x").parent, store.input(make_batch(store)).parent):
        assert folder.stat().st_mode & 0o77 == 0


def test_there_is_no_more_than_the_quota(store: BatchStore):
    upload(store, "x" * 3000)
    with closing(store.begin_upload()) as content:
        content.reserve(4000)
        with pytest.raises(RequestError, match="--batch-dir-gb"):
            content.reserve(8000)


def test_what_is_announced_counts_at_once_and_in_every_frontend(store: BatchStore, tmp_path: Path):
    other = BatchStore(tmp_path / "batches", 10_000)
    with closing(store.begin_upload()) as first:
        first.reserve(9000)
        with closing(other.begin_upload()) as second, pytest.raises(RequestError, match="--batch-dir-gb"):
            second.reserve(2000)
    with closing(other.begin_upload()) as second:
        second.reserve(9000)
    assert not list((tmp_path / "batches" / "files").iterdir())


def test_an_upload_without_a_length_is_counted_as_it_comes(store: BatchStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "RESERVED_BYTES", 1000)
    with closing(store.begin_upload()) as content:
        for _ in range(10):
            content.write(b"x" * 990)
        with pytest.raises(RequestError, match="--batch-dir-gb"):
            content.write(b"x" * 990)


def test_an_upload_of_a_dead_process_is_removed_at_the_next_start(store: BatchStore, tmp_path: Path):
    begin = "import sys, os, signal; from pathlib import Path; from extras.batches.store import BatchStore; "
    begin += "upload = BatchStore(Path(sys.argv[1]), 10_000).begin_upload(); upload.write(b'x' * 500); "
    command = [sys.executable, "-c", begin + "os.kill(os.getpid(), signal.SIGKILL)", str(tmp_path / "batches")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    folder = tmp_path / "batches" / "files"
    with closing(store.begin_upload()) as content:
        assert len(list(folder.iterdir())) == 2
        BatchStore(tmp_path / "batches", 10_000)
        assert list(folder.iterdir()) == [content.path], "that of a living process stays"


def test_the_number_of_files_and_batches_is_bounded(store: BatchStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "MAX_FILES", 1)
    monkeypatch.setattr(store_module, "MAX_BATCHES", 2)
    open_batch = make_batch(store)
    with closing(store.begin_upload()) as content, pytest.raises(RequestError, match="1 files are stored"):
        content.reserve(1)
    store.delete_file(open_batch.input_file_id)
    made = [open_batch]
    for _ in range(3):
        made.append(make_batch(store))
        store.write_batch(made[-1].become("failed", 5))
        store.delete_file(made[-1].input_file_id)
    assert {record.id for record in store.list_batches()} == {made[0].id, made[2].id, made[3].id}


def test_a_full_disk_leaves_nothing_of_a_file(store: BatchStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fail(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "_sync", fail)
    with pytest.raises(OSError, match="No space"):
        upload(store)
    assert not list((tmp_path / "batches" / "files").iterdir())


def test_a_batch_keeps_its_input_whatever_becomes_of_the_file(store: BatchStore):
    record = make_batch(store)
    store.delete_file(record.input_file_id)
    assert store.input(record).read_text() == "{}\n"
    store.write_batch(record.become("failed", 5))
    assert not store.input(record).exists()
    with pytest.raises(RequestError):
        store.add_batch(record)


def test_a_record_is_whole_whenever_the_writer_dies(store: BatchStore, monkeypatch: pytest.MonkeyPatch):
    record = make_batch(store)

    def die(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_module, "_sync", die)
    with pytest.raises(KeyboardInterrupt):
        store.write_batch(record.become("failed", 5))
    assert store.find_batch(record.id) == record


def test_who_requests_the_end_is_seen_until_it_is_there(store: BatchStore):
    record = make_batch(store)
    store.cancel(record)
    (asked,) = store.find_open()
    assert (asked.status, asked.cancelling_at is not None) == ("cancelling", True)
    assert [listed.status for listed in store.list_batches()] == ["cancelling"]
    store.write_batch(record.become("cancelled", 5))
    assert store.find_batch(record.id).status == "cancelled"
    assert store.find_open() == []


def test_open_batches_are_read_again_where_something_has_changed(store: BatchStore, monkeypatch: pytest.MonkeyPatch):
    first, second = make_batch(store), make_batch(store)
    assert [record.id for record in store.find_open()] == [first.id, second.id]
    monkeypatch.setattr(store_module, "FRESH_NS", 0)
    store.find_open()
    monkeypatch.setattr(store_module, "_read", None)  # nothing is read
    assert len(store.find_open()) == 2
    monkeypatch.undo()
    store.write_batch(first.become("failed", 5))
    assert [record.id for record in store.find_open()] == [second.id]


def test_results_become_files_also_after_a_crash_in_the_middle(store: BatchStore):
    record = make_batch(store)
    output, errors = store.results(record)
    output.write_text("{}\n")
    errors.touch()
    assert next(store.list_files()).id == record.input_file_id
    first = store.publish(record, 60)
    errors.touch()
    assert store.publish(record, 60) == first == (store.find_file(first[0] or "").id, None)
    assert store.find_file(first[0] or "").purpose == "batch_output"


def test_what_is_old_goes_and_what_is_needed_stays(store: BatchStore):
    gone, kept = upload(store, keep_s=-1), upload(store)
    old, running = make_batch(store), make_batch(store)
    store.write_batch(msgspec.structs.replace(old, created_at=5).become("completed", 5))
    for path in store.results(running):
        path.write_text("result\n")
    torn, late = (store.content("x").with_name(name) for name in ("torn.tmp", "late.tmp"))
    late.touch()
    for path in (torn, *store.results(running), *store.results(old), store.input(running)):
        path.touch()
        os.utime(path, (0, time.time() - ORPHAN_S - 5))
    with pytest.raises(RequestError):
        store.find_file(gone)
    store.clean()
    assert not any(path.exists() for path in (torn, store.content(gone), *store.results(old)))
    assert all(path.exists() for path in (late, store.content(kept), *store.results(running), store.input(running)))
    assert [record.id for record in store.list_batches()] == [running.id]


def test_one_holds_the_lock(store: BatchStore):
    lock = store.try_lock()
    assert lock is not None
    assert store.try_lock() is None
    os.close(lock)
    os.close(store.try_lock() or -1)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(BootError, match="--batch-dir"):
        BatchStore(tmp_path / "file", 10)


def test_no_link_is_followed_in_the_batch_directory(tmp_path: Path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "files").symlink_to(tmp_path / "letters")
    with pytest.raises(BootError, match="it is not a directory"):
        BatchStore(tmp_path / "batches", 1000)
    (tmp_path / "batches" / "files").unlink()
    store = BatchStore(tmp_path / "batches", 1000)
    (tmp_path / "batches" / "lock").symlink_to(tmp_path / "letter")
    with pytest.raises(OSError, match="lock"):
        store.try_lock()
    assert not (tmp_path / "letter").exists()
