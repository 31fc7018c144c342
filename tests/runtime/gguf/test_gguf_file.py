"""Models in GGUF as the `gguf` package writes and reads them, in one file and in parts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from messages.errors import BootError
from runtime.gguf.block_types import BLOCK_TYPES
from runtime.gguf.gguf_file import GgufFile, find_gguf, model_stem, part_names, read_gguf
from tests.gguf_files import Stored, Typed, gguf_bytes, write_gguf

GOLDEN = Path(__file__).parent / "golden"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "types.json").read_text())
PARTS = sorted(name for name in EXPECTED if name.startswith("split"))


def described(file: GgufFile) -> dict[str, list[Any]]:
    return {
        name: [tensor.type.name, list(tensor.shape), tensor.offset, tensor.num_bytes]
        for name, tensor in file.tensors.items()
    }


def test_every_type_of_value_and_tensor():
    file = read_gguf(GOLDEN / "types.gguf")
    assert dict(file.metadata) == EXPECTED["types.gguf"]["metadata"]
    assert described(file) == EXPECTED["types.gguf"]["tensors"]
    assert file.paths == (GOLDEN / "types.gguf",)
    assert {tensor.path for tensor in file.tensors.values()} == {GOLDEN / "types.gguf"}


def test_block_types_are_those_of_the_package():
    constants = pytest.importorskip("gguf.constants")
    sizes = {kind.value: (kind.name, *size) for kind, size in constants.GGML_QUANT_SIZES.items()}
    del sizes[9]  # Q8_1, which is not for files: the package gives it another size than ggml-common.h
    assert {number: tuple(block_type) for number, block_type in BLOCK_TYPES.items() if number in sizes} == sizes


@pytest.mark.parametrize("chosen", ["split-00001-of-00003.gguf", "."])
def test_a_model_in_parts(tmp_path: Path, chosen: str):
    for part in PARTS:
        shutil.copy(GOLDEN / part, tmp_path)
    file = read_gguf(tmp_path / chosen)
    assert file.metadata["split.context_length"] == 77
    assert described(file) == {key: tensor for part in PARTS for key, tensor in EXPECTED[part]["tensors"].items()}
    assert file.paths == tuple(tmp_path / part for part in PARTS)
    assert file.tensors["tensor.4"].path == tmp_path / PARTS[2]
    values = (tmp_path / PARTS[2]).read_bytes()[file.tensors["tensor.4"].offset :]
    assert values[:56] == 14 * b"\x00\x00\x80\x40"  # 4.0


@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_alignment_and_version_2(tmp_path: Path, alignment: int):
    tensors = {
        "a": Stored("F32", (3,)),
        "b": Stored("Q8_0", (2, 32)),
        "c": Stored("F16", (1, 2, 3, 4), bytes(47) + b"!"),
    }
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes({"general.alignment": alignment}, tensors, alignment, version=2))
    found = read_gguf(path).tensors
    assert {tensor.offset % alignment for tensor in found.values()} == {0}
    assert path.read_bytes()[found["c"].offset :][:48] == tensors["c"].data
    assert found["c"].shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("part", "damage", "complaint"),
    [
        (
            0,
            {"split.no": 1},
            r"split-00001-of-00003.gguf: is part 2 of a model in 3 files; give the first: split-00001",
        ),
        (1, None, r"split-00001-of-00003.gguf: 1 of its 3 parts are not there: split-00002-of-00003.gguf"),
        (1, {"split.no": 2}, r"split-00002-of-00003.gguf: is marked as part 3 of 3, not 2 of 3"),
        (1, {"split.count": 4}, r"split-00002-of-00003.gguf: is marked as part 2 of 4, not 2 of 3"),
        (1, {"split.no": "x"}, r"split-00002-of-00003.gguf: is marked as part 'x' of 3"),
        (2, {"split.tensors.count": 6}, r"split-00003-of-00003.gguf: split.tensors.count is 6, but 5 in the first"),
        (2, {"tensor": "tensor.1"}, r"split-00003-of-00003.gguf: the tensor 'tensor.1' is also in split-00001"),
        (2, {"tensor": ""}, r"split-00001-of-00003.gguf: the 3 parts have 4 tensors, but split.tensors.count is 5"),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, part: int, damage: dict[str, Any] | None, complaint: str):
    for number in range(3):
        facts: dict[str, Any] = {"split.no": number, "split.count": 3, "split.tensors.count": 5}
        names = {0: ["tensor.0", "tensor.1"], 1: ["tensor.2", "tensor.3"], 2: ["tensor.4"]}[number]
        if number == part:
            if damage is None:
                continue
            names = [name for name in [damage.get("tensor", names[0]), *names[1:]] if name]
            facts |= {key: value for key, value in damage.items() if key in facts}
        write_gguf(tmp_path / PARTS[number], facts, {name: Stored("F32", (2,)) for name in names})
    with pytest.raises(BootError, match=complaint):
        read_gguf(tmp_path / PARTS[0])


def test_a_part_that_was_provided_or_renamed(tmp_path: Path):
    for part in PARTS:
        shutil.copy(GOLDEN / part, tmp_path)
    with pytest.raises(BootError, match=r"is part 3 of a model in 3 files; give the first: split-00001-of-00003.gguf"):
        read_gguf(tmp_path / PARTS[2])
    (tmp_path / PARTS[0]).rename(tmp_path / "model.gguf")
    with pytest.raises(BootError, match=r"is the first of 3 files, so its name must end in -00001-of-00003\.gguf"):
        read_gguf(tmp_path / "model.gguf")


def test_the_model_of_a_directory(tmp_path: Path):
    with pytest.raises(BootError, match="has no model in GGUF"):
        find_gguf(tmp_path)
    for name in (*PARTS, "mmproj-f16.gguf", "notes.txt"):
        (tmp_path / name).touch()
    assert find_gguf(tmp_path) == tmp_path / PARTS[0]
    (tmp_path / "b.gguf").touch()
    with pytest.raises(
        BootError, match=r"several models in GGUF; choose one with --gguf-file: b.gguf, split-00001-of-0000"
    ):
        find_gguf(tmp_path)
    assert find_gguf(tmp_path, "b.gguf") == tmp_path / "b.gguf"
    assert find_gguf(tmp_path, "mmproj-f16.gguf").name == "mmproj-f16.gguf"
    with pytest.raises(BootError, match=r"has no file c.gguf; it has b.gguf, split-00001-of-00003.gguf"):
        find_gguf(tmp_path, "c.gguf")


def test_names_of_parts():
    assert part_names("a/model-x-00002-of-00003.gguf") == [
        f"a/model-x-0000{number}-of-00003.gguf" for number in (1, 2, 3)
    ]
    assert part_names("model-2-of-3.gguf") == ["model-2-of-3.gguf"]
    assert model_stem("/models/Qwen3-0.6B-Q4_K_M.gguf") == "Qwen3-0.6B-Q4_K_M"
    assert model_stem("big-00001-of-00003.gguf") == "big"
    assert model_stem("sha256-0123") == "sha256-0123"


def test_many_texts_are_read_when_they_are_requested(tmp_path: Path):
    words = [f"word{index}" for index in range(150_000)]
    path = write_gguf(tmp_path / "m.gguf", {"tokenizer.ggml.tokens": words, "after": Typed(12, 1.5)})
    metadata = read_gguf(path).metadata
    assert metadata["after"] == 1.5
    assert metadata["tokenizer.ggml.tokens"] == words
    assert len(metadata) == 2
