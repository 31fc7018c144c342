"""Checks the tensors of a model in GGUF: names, shapes and types, by the file's header and without torch.

The launcher runs it for a file that it does not know, before other processes start: `python -m
scheduler_proc.computing.loading.gguf_check FILE`. It prints what is wrong with the file, and ends with 1.
"""

import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path

from kernels.arguments.block_forms import GGUF_FORMS
from messages.errors import BootError
from runtime.gguf.block_types import NUMBERS
from runtime.gguf.conversion import HfTensor, find_architecture, list_tensors, name_in_file, read_config
from runtime.gguf.gguf_file import GgufFile, read_gguf
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.family import Source, Stack
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.parameters import Shape

MAX_SHOWN = 6
MTP_PREFIX = "mtp."
"""Begins the names of a head of multi-token prediction, which need not be used."""


def check_gguf(path: Path) -> None:
    """Raises `BootError`, with the names that the file has, for one whose tensors are not those of its model."""
    file = read_gguf(path)
    hf_config = HfConfig(read_config(file), str(file.paths[0]))
    family = find_family(hf_config)
    sources = family.list_sources(family.describe(hf_config, 1))
    tensors, faults, used = list_tensors(file), list[str](), set[str]()
    _check_types(file)
    for source in sources:
        name, stack = _find(source, tensors)
        if name not in tensors:
            faults.append(f"{name_in_file(find_architecture(file), name)} is missing")
            continue
        used.add(name)
        expected, shape = _expected_shapes(source, stack), _shape(tensors[name])
        if shape not in expected:
            shown = f"its shape is {list(tensors[name].tensor.shape)}, not {list(expected[0])}"
            faults.append(f"{tensors[name].tensor.name}: {shown}")
    for name in tensors.keys() - used:
        if not family.ignored.fullmatch(name) and not name.startswith(MTP_PREFIX):
            faults.append(f"{tensors[name].tensor.name}: the model has none of this name")
    if faults:
        faults = [*dict.fromkeys(faults)]
        more = f"; and {len(faults) - MAX_SHOWN} more" if len(faults) > MAX_SHOWN else ""
        shown = "; ".join(faults[:MAX_SHOWN]) + more
        raise BootError(f"{file.paths[0]}: tensors do not fit the metadata: {shown}")


def _check_types(file: GgufFile) -> None:
    served = (*NUMBERS, *GGUF_FORMS)
    for tensor in file.tensors.values():
        if tensor.type.name not in served:
            supported = ", ".join(served)
            what = f"is of type {tensor.type.name}, which is not supported; supported are {supported}"
            raise BootError(f"{tensor.path}: tensor {tensor.name!r} {what}")


def _find(source: Source, tensors: Mapping[str, HfTensor]) -> tuple[str, Stack | None]:
    """Returns the name of a source's tensor, and the stack that it is, if any; any of its names if none is there."""
    for stack in source.stacks:
        if stack.name in tensors:
            return stack.name, stack
    names = source.names or [stack.name for stack in source.stacks]
    return next((name for name in names if name in tensors), names[0]), None


def _shape(stored: HfTensor) -> Shape:
    """Returns the shape that a reader of the file returns; blocks are of one matrix."""
    shape = stored.tensor.shape
    if stored.tensor.type.is_in_blocks:
        shape = prod(shape[:-1]), shape[-1]
    return shape[::-1] if stored.is_transposed else shape


def _expected_shapes(source: Source, stack: Stack | None) -> list[Shape]:
    if stack is None:
        return [source.shape]
    num_experts, *shape = stack.shape
    whole = num_experts, *(reversed(shape) if stack.is_transposed else shape)
    return [whole, (num_experts * shape[0], *shape[1:])]


def main() -> int:
    path = Path(sys.argv[1])
    try:
        check_gguf(path)
    except BootError as error:  # descriptions of models speak of config.json, which is made of the metadata
        text = str(error).replace("config.json", "metadata")
        print(text if text.startswith(str(path.parent)) else f"{path}: {text}")
        return 1
    except Exception as error:
        print(f"{path}: its tensors cannot be checked ({type(error).__name__}: {str(error)[:200]})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
