"""An adapter's files: the digest is that of the contents, and a directory without an adapter is refused in words."""

import json
import os
from pathlib import Path

import pytest

from messages.ring.adapters import Adapter
from runtime.adapter_files import AdapterError, open_files, read_digest
from runtime.adapter_table import change_table, read_table, write_table

CONFIG = {"peft_type": "LORA", "r": 8}


def save(directory: Path, weights: bytes = b"tensors", config: object = CONFIG) -> str:
    directory.mkdir(exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config))
    (directory / "adapter_model.safetensors").write_bytes(file_of(weights, weights=("U8", [len(weights)])))
    return str(directory)


def file_of(data: bytes, **tensors: tuple[str, list[int]]) -> bytes:
    """Returns a file of safetensors in which all tensors have the offsets of `data`."""
    fields = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, len(data)]}
        for name, (dtype, shape) in tensors.items()
    }
    header = json.dumps(fields).encode()
    return len(header).to_bytes(8, "little") + header + data


def test_the_digest_is_that_of_the_contents(tmp_path: Path):
    first = read_digest(save(tmp_path / "a"))
    assert first == read_digest(save(tmp_path / "b")), "the directory is no part of it"
    with open_files(str(tmp_path / "b")) as files:
        assert (files.config, list(files.read())) == (CONFIG, [("weights", b"tensors")])
        assert files.digest() == first, "whether or not the values have been read"
    others = [
        read_digest(save(tmp_path / "a", b"tensorz")),
        read_digest(save(tmp_path / "a", config={**CONFIG, "r": 9})),
    ]
    assert len({first, *others}) == 3


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
        (lambda path: "/" + "x" * 5000, "cannot be read|there is no directory"),  # the latter since Python 3.14
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
        read_digest(str(make(tmp_path)))


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (file_of(b"1234", a=("F32", [1]), b=("F32", [1])), "its bytes are not those of its shape"),
        (file_of(b"1234", a=("F32", [2])), "its bytes are not those of its shape"),
        (file_of(b"", a=("F32", [1 << 47, 1 << 47])), "its bytes are not those of its shape"),
        (file_of(b"", a=("F32", [-1])), "not one of safetensors"),
        (file_of(b"1234", a=("F32", [1])) + b"5", "the file has 5 for them"),
        (file_of(b"1234", a=("F32", [1]))[:-1], "the file has 3 for them"),
        (file_of(b"1234", a=("Q4", [1])), "the number format 'Q4' is not supported"),
        (file_of(b"", **{f"t{index}": ("U8", [0]) for index in range(1 << 17)}), "131072 tensors"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "damaged or too large"),
    ],
    ids=["overlap", "short", "endless", "negative", "more", "less", "format", "many", "header"],
)
def test_a_header_that_is_not_that_of_the_file_is_refused(tmp_path: Path, weights: bytes, words: str):
    save(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(weights)
    with pytest.raises(AdapterError, match=words):
        read_digest(str(tmp_path))


def test_a_huge_sparse_file_is_refused_by_its_size(tmp_path: Path):
    """Its header is that of the whole file; nothing of a terabyte is read."""
    save(tmp_path)
    size = 1 << 40
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with (tmp_path / "adapter_model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(AdapterError, match="supported are 17179869184"):
        read_digest(str(tmp_path))


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
