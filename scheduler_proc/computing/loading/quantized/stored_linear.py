"""The tensors of one quantized linear layer in a checkpoint, and the protocol of what reads them.

Shape legend: O outputs, I inputs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.module_patterns import PatternError, first_matches

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INT32 = (torch.int32,)


@dataclass(frozen=True)
class StoredLinear:
    """A module's tensors by the endings of their names. Methods raise `BootError` that names a tensor."""

    module: str
    tensors: Mapping[str, Tensor]

    def has(self, ending: str) -> bool:
        return ending in self.tensors

    def tensor(
        self, ending: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...], num_dimensions: int = 2
    ) -> Tensor:
        """Returns a tensor of one of these dtypes and shapes; without shapes, of any size with that many dimensions."""
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise BootError(f"the checkpoint lacks {self._name(ending)}, which its quantization_config implies")
        if tensor.dtype not in dtypes:
            requested = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise self.error(ending, f"expected {requested}, got {str(tensor.dtype).removeprefix('torch.')}")
        if tuple(tensor.shape) not in shapes if shapes else tensor.dim() != num_dimensions:
            requested = " or ".join(str(list(shape)) for shape in shapes) or {2: "a matrix"}.get(
                num_dimensions, f"{num_dimensions} dimensions"
            )
            raise self.error(ending, f"expected {requested}, got {list(tensor.shape)}")
        return tensor

    def scale(self, ending: str, dtypes: tuple[torch.dtype, ...], *shapes: tuple[int, ...]) -> Tensor:
        """Returns a tensor of finite numbers in float32."""
        tensor = self.tensor(ending, dtypes, *shapes).float()
        if not bool(tensor.isfinite().all()):
            raise self.error(ending, "holds NaN or an infinity")
        return tensor

    def num_groups(self, num_inputs: int, group_size: int) -> int:
        """Returns the number of groups of inputs; a `group_size` of -1 makes one of all."""
        if group_size == -1:
            return 1
        if num_inputs % group_size:
            raise BootError(
                f"quantization_config: group_size is {group_size}, which does not divide the {num_inputs} inputs of "
                f"{self.module}"
            )
        return num_inputs // group_size

    def group_index(self, ending: str, num_inputs: int, num_groups: int) -> Tensor | None:
        """Returns the group of each input, `None` if the groups are in order."""
        group_I = self.tensor(ending, INT32, (num_inputs,))
        if int(group_I.min()) < 0 or int(group_I.max()) >= num_groups:
            raise self.error(ending, f"expected groups 0 to {num_groups - 1}, got others")
        in_order = torch.arange(num_inputs, dtype=torch.int32) // (num_inputs // num_groups)
        return None if torch.equal(group_I, in_order) else group_I

    def error(self, ending: str, complaint: str) -> BootError:
        return BootError(f"weights do not fit quantization_config: {self._name(ending)}: {complaint}")

    def _name(self, ending: str) -> str:
        return f"{self.module}{'' if ending.startswith('_') else '.'}{ending}"


@dataclass(frozen=True)
class LinearWeight:
    """A weight [O, I] that is not read yet."""

    form: str | None
    """Its blocks have this form; without one, `read` returns values in float32."""
    read: Callable[[], Tensor | BlockRows]


class QuantizationMethod(Protocol):
    """How a checkpoint stores quantized linears. Raises `BootError` for a config that is not supported."""

    endings: frozenset[str]
    """Endings of tensors' names, after the module's name and a dot, or after the weight's if they begin with a line. A
    module is quantized if it has one of them that is not "weight"."""

    def __init__(self, config: HfConfig, modules: Collection[str]):
        """`modules`: the names of the quantized modules."""
        ...

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        """Checks all tensors except the values of codes. Raises `BootError` that names a tensor."""
        ...


def read_group_size(config: HfConfig) -> int:
    """Returns how many inputs share a scale, -1 if all do."""
    try:
        return config.choice("group_size", (-1,), default=-1)
    except BootError:
        return config.count("group_size")


def match_modules(config: HfConfig, field: str, patterns: Sequence[str], modules: Collection[str]) -> Mapping[str, int]:
    """Returns, by module, the index of the first pattern that matches it. Raises `BootError` for bad patterns."""
    try:
        return first_matches(patterns, modules)
    except PatternError as error:
        raise config.refuse(field, list(patterns), str(error)) from None
