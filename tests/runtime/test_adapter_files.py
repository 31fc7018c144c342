"""An adapter's files: the digest is that of the contents, and a directory without an adapter is refused in words."""

import json
import os
from pathlib import Path

import pytest

from messages.ring.adapters import Adapter
from runtime.adapter_files import AdapterError, read_files
from runtime.adapter_table import change_table, read_table, write_table

CONFIG = {"peft_type": "LORA", "r": 8}


def save(directory: Path, weights: bytes = b"tensors", config: object = CONFIG) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    (directory / "adapter_model.safetensors").write_bytes(weights)
    return str(directory)


def test_the_digest_is_that_of_the_contents(tmp_path: Path):
    first = read_files(save(tmp_path / "a"))
    assert first == read_files(save(tmp_path / "b")), "the directory is no part of it"
    assert (first.config, first.weights) == (CONFIG, b"tensors")
    others = [read_files(save(tmp_path / "a", b"tensorz")), read_files(save(tmp_path / "a", config={**CONFIG, "r": 9}))]
    assert len({first.digest, *(other.digest for other in others)}) == 3


def without(directory: Path, *names: str) -> Path:
    save(directory)
    for name in names:
        (directory / name).unlink()
    return directory


def pickled(directory: Path) -> Path:
    (without(directory, "adapter_model.safetensors") / "adapter_model.bin").write_bytes(b"\x80\x04.")
    return directory


def in_parts(directory: Path) -> Path:
    (without(directory, "adapter_model.safetensors") / "adapter_model.safetensors.index.json").write_text("{}")
    return directory


def with_pipe(directory: Path) -> Path:
    os.mkfifo(without(directory, "adapter_model.safetensors") / "adapter_model.safetensors")
    return directory


def with_config(directory: Path, text: str) -> Path:
    (without(directory) / "adapter_config.json").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nothing", "there is no directory"),
        (lambda path: Path(__file__), "there is no directory"),
        (lambda path: "org/adapter", "not an absolute path"),
        (lambda path: "", "not an absolute path"),
        (lambda path: "/a\0b", "cannot be read|there is no directory"),
        (lambda path: "/" + "x" * 5000, "cannot be read"),
        (
            lambda path: without(path / "a", "adapter_config.json"),
            "no adapter_config.json: .* as PEFT saves it",
        ),
        (lambda path: without(path / "a", "adapter_model.safetensors"), "contains no adapter_model.safetensors"),
        (lambda path: pickled(path / "a"), "pickle, which can run code"),
        (lambda path: in_parts(path / "a"), "weights in several files"),
        (lambda path: with_pipe(path / "a"), "contains no adapter_model.safetensors"),
        (lambda path: with_config(path / "a", "[1]"), "is not a JSON object"),
        (lambda path: with_config(path / "a", "{"), "is not a JSON object"),
        (lambda path: with_config(path / "a", "[" * 100_000), "is not a JSON object"),
        (lambda path: with_config(path / "a", " " * 2_000_000), "is larger than"),
    ],
)
def test_what_is_no_adapter_is_refused(tmp_path: Path, make, words: str):
    with pytest.raises(AdapterError, match=words):
        read_files(str(make(tmp_path)))


def test_a_table_is_replaced_at_once_and_seen_by_all(tmp_path: Path):
    file = str(tmp_path / "adapters")
    write_table(file, {})
    adapter = Adapter("a", "/a", "00")
    change_table(file, lambda table: table.update(a=adapter))
    assert read_table(file) == {"a": adapter}
    with pytest.raises(KeyError):
        change_table(file, lambda table: table.update(b=table.pop("b")))
    assert read_table(file) == {"a": adapter}
    assert read_table("") == {}
