"""Directories of models in GGUF: written once, for the file as it is, into a cache that only its user can change."""

import json
import os
import struct
from pathlib import Path

import pytest

from messages.config.server import DraftFacts, ModelConfig, ModelFacts
from messages.errors import BootError
from runtime.gguf.gguf_file import read_gguf
from supervisor.model.facts import read_model_facts
from supervisor.model.gguf import model_directory
from supervisor.model.gguf.cache import cache_dir
from supervisor.model.gguf.model_directory import Parts, find_directory, move_temporary
from tests.gguf_files import write_model

BOTH = Parts.MODEL | Parts.TOKENIZER


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sluice" / "gguf"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf")


def read_facts(directory: Path) -> ModelFacts:
    return read_model_facts(ModelConfig(), directory, directory, "m")


def test_a_directory_is_written_once_for_a_file_as_it_is(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    directory = find_directory(file, BOTH)
    assert directory.parent == cache
    assert directory.name.startswith("tiny-")
    names = {"config.json", "generation_config.json", "model.gguf", "tokenizer.json", "tokenizer_config.json"}
    assert {entry.name for entry in directory.iterdir()} == names | {"source.json"}
    assert (directory / "model.gguf").resolve() == file
    assert json.loads((directory / "config.json").read_text())["vocab_size"] == 259
    written = (directory / "config.json").stat().st_ino
    os.utime(file, ns=(1, 1))
    assert find_directory(file, BOTH) == directory
    assert (directory / "config.json").stat().st_ino == written
    monkeypatch.setattr(model_directory, "_code_digest", lambda: "of other code")
    assert len({directory, find_directory(file, BOTH), find_directory(file, Parts.MODEL)}) == 3
    assert len(list(cache.iterdir())) == 3


def test_another_header_of_equal_size_and_time_has_another_directory(file: Path):
    """The former directory stays as it was, since a server may use it."""
    first, times = find_directory(file, BOTH), file.stat()
    content = file.read_bytes()
    file.write_bytes(content.replace(b"<|im_end|>", b"<|IM_END|>"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file.stat().st_size == times.st_size
    second = find_directory(file, BOTH)
    assert "<|IM_END|>" in (second / "tokenizer.json").read_text()
    assert "<|im_end|>" in (first / "tokenizer.json").read_text()
    file.write_bytes(content)
    assert find_directory(file, BOTH) == first


def test_a_link_is_the_file_that_it_names(file: Path, tmp_path: Path):
    link = tmp_path / "link.gguf"
    link.symlink_to(file)
    assert find_directory(link, BOTH) == find_directory(file, BOTH)


def test_a_model_in_parts(tmp_path: Path):
    first = write_model(tmp_path / "big.gguf", num_parts=3)
    directory = find_directory(first, BOTH)
    links = sorted(directory.glob("*.gguf"))
    assert [link.name for link in links] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert [link.resolve().name for link in links] == [f"big-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert read_gguf(directory).tensors.keys() == read_gguf(first).tensors.keys()
    links[1].resolve().unlink()
    with pytest.raises(BootError, match=r"big-00001-of-00003\.gguf: 1 of its 3 parts are not there: big-00002-of-0000"):
        find_directory(first, BOTH)


def test_a_damaged_file_leaves_nothing(file: Path, cache: Path):
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(BootError, match=r"tiny\.gguf: tensor .* go beyond the end of the file"):
        find_directory(file, BOTH)
    file.write_bytes(whole.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
    with pytest.raises(BootError, match=r"tiny\.gguf: tensor 'blk\.0\.ffn_xx\.weight'"):
        find_directory(file, BOTH)
    write_model(file, {"tokenizer.ggml.pre": "of tomorrow"})
    with pytest.raises(BootError, match=r"tiny\.gguf: .*of tomorrow"):
        find_directory(file, BOTH)
    assert list(cache.iterdir()) == []
    assert find_directory(file, Parts.MODEL).parent == cache


def test_another_launcher_may_be_faster(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    directory = find_directory(file, BOTH)
    monkeypatch.setattr(model_directory, "find_cached", lambda name, paths: None)  # it is not there yet
    assert find_directory(file, BOTH) == directory
    assert list(cache.iterdir()) == [directory]


@pytest.mark.parametrize("kind", ["file", "link", "writable"])
def test_a_cache_that_cannot_be_trusted_is_not_used(
    file: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    cache.parent.mkdir(parents=True)
    match kind:
        case "file":
            cache.touch()
        case "link":
            cache.symlink_to(tmp_path / "temporary")
        case _:
            cache.mkdir()
            (cache / "anything").touch()
            cache.chmod(0o777)
    directory = find_directory(file, BOTH)
    assert directory.parent == tmp_path / "temporary"
    facts = ModelFacts(
        model_dir=str(directory),
        tokenizer_dir=str(directory),
        served_names=("m",),
        vocab_size=9,
        max_model_len=9,
        draft=DraftFacts(model_dir="/draft", vocab_size=9, max_model_len=9),
    )
    (tmp_path / "run").mkdir()
    moved = move_temporary(facts, tmp_path / "run")
    assert moved.model_dir == moved.tokenizer_dir == str(tmp_path / "run" / directory.name)
    assert moved.draft == facts.draft
    assert (Path(moved.model_dir) / "model.gguf").resolve() == file
    assert not directory.exists()
    assert move_temporary(moved, tmp_path / "run") == moved


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch):
    def fail() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", fail)
    assert cache_dir() == Path("/dev/null/sluice")


def test_tensors_of_another_model_are_refused_by_their_names_in_the_file(file: Path, cache: Path):
    whole, table = file.read_bytes(), struct.pack("<2QI", 32, 259, 8)
    for old, new, complaint in (
        (b"blk.0.ffn_up.weight", b"blk.7.ffn_up.weight", "blk.0.ffn_up.weight is missing; blk.7.ffn_up.weight: .*none"),
        (struct.pack("<2Q", 64, 32), struct.pack("<2Q", 32, 64), r"blk.0.ffn_down.weight: its shape is \[64, 32\]"),
        (table, struct.pack("<2QI", 32, 258, 8), "has 258 rows, but tokenizer.ggml.tokens has 259"),
        (table, struct.pack("<2QI", 259, 32, 24), "token_embd.weight' is of type I8, which is not"),
    ):
        assert whole.count(old) == 1
        file.write_bytes(whole.replace(old, new))
        with pytest.raises(BootError, match=rf"tiny\.gguf: .*{complaint}"):
            find_directory(file, BOTH)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "complaint"),
    [
        (MemoryError(), "there is not enough memory to read it"),
        (StopIteration("x" * 999), r"cannot be read \(StopIter"),
    ],
)
def test_any_exception_names_the_file(file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, complaint: str):
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(model_directory, "write_tokenizer", fail)
    with pytest.raises(BootError, match=rf"tiny\.gguf: {complaint}") as raised:
        find_directory(file, BOTH)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(("kind", "mode"), [(1, "mean"), (2, "cls"), (3, "last")])
def test_models_of_vectors_pool_as_their_file_has_it(file: Path, kind: int, mode: str):
    directory = find_directory(write_model(file, {"qwen2.pooling_type": kind}), BOTH)
    facts = read_facts(directory).pooling
    assert facts is not None
    assert (facts.kind, facts.pooling, facts.normalizes, facts.generates) == ("embed", mode, True, True)


def test_a_way_of_pooling_that_is_not_supported(file: Path):
    assert read_facts(find_directory(write_model(file, {"qwen2.pooling_type": 0}), BOTH)).pooling is None
    with pytest.raises(BootError, match=r"tiny\.gguf: metadata qwen2.pooling_type is 4: 4 is that of a reranker"):
        find_directory(write_model(file, {"qwen2.pooling_type": 4}), BOTH)
