"""A checkpoint whose linears are stored as several tensors each, read as one weight each."""

import logging
from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.checkpoint import Checkpoint
from scheduler_proc.computing.loading.quantized.stored_linear import (
    FLOATS,
    LinearWeight,
    QuantizationMethod,
    StoredLinear,
)
from scheduler_proc.computing.loading.sources.tensor_file import StoredTensor

WEIGHT = "weight"
NOT_NEEDED = frozenset(
    {"input_scale", "input_scale_ub", "input_global_scale", "input_zero_point", "activation_scale", "output_scale"}
    | {"q_scale", "k_scale", "v_scale", "prob_scale"}
)
"""Endings of activations' and the KV cache's scales: neither is rounded as in the checkpoint."""

log = logging.getLogger("sluice.weights")


class QuantizedCheckpoint(Checkpoint):
    """A checkpoint in which each quantized linear has one tensor, its `weight`.

    Raises `BootError` for tensors that are missing or do not fit their `quantization_config`.
    """

    def __init__(self, checkpoint: Checkpoint, name: str, method: type[QuantizationMethod], config: HfConfig):
        self.paths, self._checkpoint, self._name = checkpoint.paths, checkpoint, name
        parts: dict[str, dict[str, str]] = {}
        for tensor_name in checkpoint.files:
            for weight, ending in _splits(tensor_name):
                if ending in method.endings:
                    parts.setdefault(weight, {})[tensor_name] = ending
        self._parts = {weight: part for weight, part in parts.items() if set(part.values()) != {WEIGHT}}
        self._method = method(config, [weight.removesuffix(f".{WEIGHT}") for weight in self._parts])
        hidden = {part for linear in self._parts.values() for part in linear}
        hidden |= {name for name in checkpoint.files if name.rpartition(".")[2] in NOT_NEEDED}
        self.files = {name: file for name, file in checkpoint.files.items() if name not in hidden}
        self.files |= {weight: checkpoint.files[min(linear)] for weight, linear in self._parts.items()}
        found = self._find(set(self._parts))
        self.forms = {name: weight.form for name, weight in found if isinstance(weight, LinearWeight) and weight.form}

    def read(self, requested: set[str]) -> Iterator[tuple[str, StoredTensor]]:
        """Yields the wanted tensors; those of quantized linears in float32 or in blocks. Raises `BootError`."""
        forms = Counter[str]()
        for name, weight in self._find(requested):
            if isinstance(weight, LinearWeight):
                forms[f"blocks of {weight.form}" if weight.form else "values"] += 1
                yield name, weight.read()
            else:
                yield name, weight
        parts = ", ".join(f"{number} as {form}" for form, number in forms.items())
        log.info("%s: %d quantized weights are read, %s", self._name, forms.total(), parts or "none")

    def _find(self, requested: set[str]) -> Iterator[tuple[str, StoredTensor | LinearWeight]]:
        weight_of = {part: name for name in requested for part in self._parts.get(name, {name: WEIGHT})}
        found: dict[str, dict[str, Tensor]] = {}
        for part, tensor in self._checkpoint.read(set(weight_of)):
            name = weight_of[part]
            if name not in self._parts:
                if isinstance(tensor, Tensor) and tensor.dtype not in FLOATS:
                    dtype = str(tensor.dtype).removeprefix("torch.")
                    raise BootError(
                        f"weights do not fit quantization_config: {name} is {dtype}, and the checkpoint lacks its "
                        f"scales ({self._name})"
                    )
                yield name, tensor
                continue
            endings = self._parts[name]
            assert isinstance(tensor, Tensor), "a file of blocks has no other quantization"
            tensors = found.setdefault(name, {})
            tensors[endings[part]] = tensor
            if len(tensors) == len(endings):
                yield name, self._method.find_weight(StoredLinear(name.removesuffix(f".{WEIGHT}"), found.pop(name)))


def _splits(name: str) -> list[tuple[str, str]]:
    """Returns the weights that a tensor may be a part of, with the rest of its name.

    That has up to three words after the module's name, or is a part of a word (`_blocks`).
    """
    words = name.split(".")
    modules = [(".".join(words[:-count]), ".".join(words[-count:])) for count in range(1, min(4, len(words)))]
    stem, line, last = name.rpartition("_")
    return [*((f"{module}.{WEIGHT}", ending) for module, ending in modules), (stem, line + last)]
