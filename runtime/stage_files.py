"""The parts of a model's weight files that a stage of a pipeline reads: its layers, the headers, and both ends."""

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.gguf.configs import FACTOR_TENSORS
from runtime.gguf.header import read_header

Span = tuple[int, int]
"""The first byte, and the one after the last."""

LAST_END = 1 << 31
ALL_LAYERS = range(LAST_END)
"""The last stage's layers end at `LAST_END`, however many layers the model has."""

LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blk)\.(\d+)\.", re.ASCII)
"""The number of a layer in the name of a tensor."""

MTP = re.compile(r"(?:^|\.)mtp\.")
"""Heads of multi-token prediction have layers of their own, and belong to the last stage."""

END_BYTES = 1 << 16
"""Bytes read at either end of a model's file to recognise it: reading all of it would take as long as loading it."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format safetensors."""


def spans_of_layers(files: Sequence[Path], layers: range) -> list[list[Span]]:
    """Returns what a stage with these layers reads of each weight file of a model.

    Tensors outside layers are read by the first stage and the last one. Files whose tensors cannot be assigned to
    layers are read whole. May raise `OSError`, `BootError`, `ValueError` or `struct.error` for a damaged header.
    """
    whole = [[(0, file.stat().st_size)] for file in files]
    if layers == ALL_LAYERS:
        return whole
    tensors = [_tensors_of(file) for file in files]
    numbers = {_layer_of(name) for of_file in tensors for name in of_file}
    if layers.start not in numbers:
        return whole
    return [
        [(0, END_BYTES), *(span for name, span in of_file.items() if _is_read(name, layers)), (size - END_BYTES, size)]
        if of_file
        else [(0, size)]
        for of_file, [(_, size)] in zip(tensors, whole, strict=True)
    ]


def read_safetensors_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Returns the size of the header, with its length, and the tensors in it by name."""
    with file.open("rb") as opened:
        (num_bytes,) = struct.unpack("<Q", opened.read(8))
        header: dict[str, Any] = json.loads(opened.read(min(num_bytes, MAX_HEADER_BYTES)))
    return 8 + num_bytes, {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _tensors_of(file: Path) -> dict[str, Span]:
    """Returns where the tensors of a file lie, and its header as one without a name; nothing for a pickle."""
    if file.suffix == ".safetensors":
        begin, header = read_safetensors_header(file)
        places = {name: tensor["data_offsets"] for name, tensor in header.items()}
        return {"": (0, begin)} | {name: (begin + first, begin + end) for name, (first, end) in places.items()}
    if file.suffix == ".gguf":
        _, tensors, begin = read_header(file)
        places = {name: (each.offset, each.offset + each.num_bytes) for name, each in tensors.items()}
        return {"": (0, begin)} | places
    return {}


def _is_read(name: str, layers: range) -> bool:
    number = _layer_of(name)
    is_at_end = layers.start == 0 or layers.stop == LAST_END
    return not name or name in FACTOR_TENSORS or (is_at_end if number is None else number in layers)


def _layer_of(name: str) -> int | None:
    found = None if MTP.search(name) else LAYER.search(name)
    return found and int(found[1])
