import threading
from pathlib import Path

import pytest

from frontend.errors import UnavailableError
from frontend.images.store import ImageStore

MAX_BYTES = 1000


def open_store(directory: Path, owner: int = 1) -> ImageStore:
    return ImageStore(directory / "images", owner, MAX_BYTES, lambda _: None)


def public(store: ImageStore) -> list[str]:
    return sorted(path.name for path in store.path(b"").iterdir() if path.is_file())


def test_a_file_is_written_once_and_goes_with_its_last_reference(tmp_path: Path):
    store = open_store(tmp_path)
    digest = store.put(b"abc")
    inode = store.path(digest).stat().st_ino
    assert store.put(b"abc") == digest
    store.hold([digest])
    assert (store.path(digest).read_bytes(), store.path(digest).stat().st_ino) == (b"abc", inode)
    store.release([digest, digest])
    assert (store.num_bytes, store.path(digest).exists()) == (3, True)
    store.release([digest])
    assert (store.num_bytes, public(store), list((tmp_path / "images" / "1").iterdir())) == (0, [], [])


def test_no_more_bytes_than_the_limit_are_kept(tmp_path: Path):
    store = open_store(tmp_path)
    digest = store.put(b"x" * MAX_BYTES)
    with pytest.raises(UnavailableError, match="1000 bytes"):
        store.put(b"y")
    assert store.put(b"x" * MAX_BYTES) == digest
    store.release([digest, digest])
    store.release([store.put(b"y")])
    assert store.num_bytes == 0


def test_a_file_that_cannot_be_written_or_named_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for method in ("write_bytes", "hardlink_to"):
        store = open_store(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refuse)
            with pytest.raises(UnavailableError, match="No space left"):
                store.put(b"abc")
        assert (store.num_bytes, public(store)) == (0, [])
        store.release([store.put(b"abc")])
        assert list((tmp_path / "images" / "1").iterdir()) == []


def test_two_frontends_share_a_file(tmp_path: Path):
    first, second = open_store(tmp_path), open_store(tmp_path, 2)
    for earlier, later in ((first, second), (second, first)):
        digest = earlier.put(b"abc")
        assert later.put(b"abc") == digest
        assert later.path(digest).stat().st_nlink == 3
        earlier.release([digest])
        assert later.path(digest).read_bytes() == b"abc"
        later.release([digest])
        assert public(later) == []


def test_the_files_of_a_dead_frontend_go_unless_another_needs_them(tmp_path: Path):
    dead, living = open_store(tmp_path, 1), open_store(tmp_path, 2)
    dead.put(b"only its own")
    shared = dead.put(b"abc")
    living.put(b"abc")
    (tmp_path / "images" / "1" / "7.new").write_bytes(b"half writ")
    living.clear_gone([2])
    assert (public(living), (tmp_path / "images" / "1").exists()) == ([shared.hex()], False)
    living.release([shared])
    assert public(living) == []


def test_a_file_without_an_owner_goes(tmp_path: Path):
    """A frontend may die between the removal of its own name and that of the public one."""
    store = open_store(tmp_path)
    digest = store.put(b"abc")
    (tmp_path / "images" / "1" / digest.hex()).unlink()
    open_store(tmp_path, 2).clear_gone([2])
    assert public(store) == []


def test_threads_and_frontends_at_once(tmp_path: Path):
    stores = [open_store(tmp_path, owner) for owner in (1, 2)]
    images = [bytes([number]) * 10 for number in range(4)]
    failures: list[BaseException] = []

    def run(store: ImageStore, offset: int) -> None:
        try:
            for number in range(200):
                digest = store.put(images[(number + offset) % 4])
                assert len(store.path(digest).read_bytes()) == 10
                store.release([digest])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(stores[n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [store.num_bytes for store in stores] == [0, 0]
    assert public(stores[0]) == []
