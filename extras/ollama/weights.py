"""What Ollama's clients show of a model's weights: their size, parameters and most common number format."""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

from messages.errors import BootError
from runtime.gguf.gguf_file import SUFFIX, read_gguf
from runtime.model_files import is_weight_file
from runtime.stage_files import read_safetensors_header

UNITS = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


class WeightFacts(NamedTuple):
    """`format`: gguf or safetensors. `level`: the number format of most parameters. `digest`: of names and times."""

    format: str
    num_bytes: int
    modified_s: int
    digest: str
    level: str
    num_parameters: int

    @property
    def parameter_size(self) -> str:
        """The number of parameters as people write it: 135M; empty if it is unknown."""
        for unit, letter in UNITS:
            if self.num_parameters >= unit:
                return f"{self.num_parameters / unit:.3g}{letter}"
        return ""


def read_weights(folder: Path) -> WeightFacts:
    """Returns the facts of the weights in a model directory, by the headers of its files."""
    files = [file for file in sorted(folder.glob("*")) if is_weight_file(file.name)]
    stats = [file.stat() for file in files]
    counts: Counter[str] = Counter()
    try:
        for file in files:
            for kind, number in _tensors(file):
                counts[kind] += number
    except (BootError, OSError, ValueError, KeyError, TypeError, struct.error):
        counts.clear()
    recorded = [(str(file.resolve()), stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)]
    return WeightFacts(
        "gguf" if any(file.suffix == SUFFIX for file in files) else "safetensors",
        sum(stat.st_size for stat in stats),
        int(max((stat.st_mtime for stat in stats), default=0)),
        hashlib.sha256(repr(recorded).encode()).hexdigest(),
        max(counts, key=lambda kind: counts[kind], default=""),
        counts.total(),
    )


def _tensors(file: Path) -> Iterator[tuple[str, int]]:
    """Yields the number format and the number of values of each tensor."""
    if file.suffix == SUFFIX:
        for tensor in read_gguf(file).tensors.values():
            yield tensor.type.name, prod(tensor.shape)
    elif file.suffix == ".safetensors":
        _, tensors = read_safetensors_header(file)
        yield from ((tensor["dtype"], prod(tensor["shape"])) for tensor in tensors.values())
