"""Makes types.gguf, a split model and types.json with the `gguf` package: what `GGUFReader` finds in the files.

Run: python make_types.py (gguf 0.19.0).
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy

gguf: Any = import_module("gguf")
HERE = Path(__file__).parent
VALUES: dict[str, tuple[str, Any]] = {
    "uint8": ("UINT8", 255),
    "int8": ("INT8", -128),
    "uint16": ("UINT16", 65535),
    "int16": ("INT16", -32768),
    "uint32": ("UINT32", 2**32 - 1),
    "int32": ("INT32", -(2**31)),
    "float32": ("FLOAT32", 0.1),
    "bool": ("BOOL", True),
    "string": ("STRING", "Über 😀\n"),
    "uint64": ("UINT64", 2**64 - 1),
    "int64": ("INT64", -(2**63)),
    "float64": ("FLOAT64", 0.1),
}
ARRAYS: dict[str, list[Any]] = {
    "strings": ["<s>", "", "▁the", "Ġ\u0120"],
    "floats": [0.5, -1.25, 3e9],
    "integers": [1, -2, 3],
    "booleans": [True, False],
}


def write_types(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "types")
    for name, (kind, value) in VALUES.items():
        writer.add_key_value(f"value.{name}", value, gguf.GGUFValueType[kind])
    for name, values in ARRAYS.items():
        writer.add_array(f"array.{name}", values)
    random = numpy.random.default_rng(1)
    for kind, (_, num_bytes) in gguf.constants.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # not for files; the package gives it another size than ggml-common.h
            continue
        data = random.integers(0, 256, (3, num_bytes), dtype=numpy.uint8)
        writer.add_tensor(f"blk.0.{kind.name.lower()}.weight", data, raw_dtype=kind)
    finish(writer)


def write_split(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "split", split_max_tensors=2)
    writer.add_context_length(77)
    for index in range(5):
        writer.add_tensor(f"tensor.{index}", numpy.full((2, 3 + index), index, numpy.float32))
    finish(writer)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {
        tensor.name: [
            tensor.tensor_type.name,
            tensor.shape.tolist()[::-1],
            int(tensor.data_offset),
            int(tensor.n_bytes),
        ]
        for tensor in reader.tensors
    }
    return {"metadata": fields, "tensors": tensors}


if __name__ == "__main__":
    write_types(HERE / "types.gguf")
    write_split(HERE / "split.gguf")
    found = {
        path.name: describe(path) for path in sorted(HERE.glob("*.gguf")) if path.name.startswith(("types", "split"))
    }
    (HERE / "types.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
