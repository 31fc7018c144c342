"""What a file in GGUF may have that llama.cpp reads in another way than the words say."""

from pathlib import Path
from typing import Any

import pytest

from runtime.gguf.conversion import list_tensors, read_config
from runtime.gguf.gguf_file import read_gguf
from tests.gguf_files import Stored, write_gguf
from tests.runtime.gguf.test_architectures import TENSORS
from tests.runtime.gguf.test_mutated_headers import METADATA


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "none", "factor": 4.0}, {"rope_type": "default"}),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"type": "linear"}, {"rope_type": "default"}),
    ],
)
def test_a_rope_scaling_of_type_none_has_no_factor(tmp_path: Path, scaling: dict[str, Any], expected: dict[str, Any]):
    architecture = METADATA["general.architecture"]
    fields = {f"{architecture}.rope.scaling.{name}": value for name, value in scaling.items()}
    found = read_config(read_gguf(write_gguf(tmp_path / "m.gguf", METADATA | fields, TENSORS)))["rope_parameters"]
    assert {name: found[name] for name in ("rope_type", "factor") if name in found} == expected


def test_last_dimensions_of_1_mean_nothing(tmp_path: Path):
    tensors = TENSORS | {
        "output_norm.weight": Stored("F32", (1, 1, 64)),
        "token_embd.weight": Stored("Q8_0", (1, 40, 64)),
    }
    shapes = {
        name: found.tensor.shape
        for name, found in list_tensors(read_gguf(write_gguf(tmp_path / "m.gguf", METADATA, tensors))).items()
    }
    assert shapes["model.norm.weight"] == (64,)
    assert shapes["model.embed_tokens.weight"] == (40, 64)
    assert read_config(read_gguf(tmp_path / "m.gguf"))["vocab_size"] == 40
