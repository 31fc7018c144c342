"""The parts of a source as a tensor of a checkpoint has them, in the order and the layout of our parameters."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows, TransposedBlockRows
from kernels.formats.weight_format import Rows
from kernels.operations.dequantize_blocks import dequantize_blocks, has_finite_scales
from messages.errors import BootError
from scheduler_proc.computing.loading.sources.tensor_file import StoredTensor, with_whole_heads
from scheduler_proc.computing.model.families.family import InterleavedHeads, Source, StoredSource

VALUES_AT_ONCE = 1 << 18
"""The number of values that are read from blocks at a time: they stay in the caches until they are stored."""


def read_values(rows: Rows, requested: range) -> Iterator[tuple[int, Tensor]]:
    """Yields values of the wanted rows, and how many come before; those of blocks a few at a time."""
    if not requested:
        return
    if isinstance(rows, Tensor):
        yield 0, rows[requested.start : requested.stop]
        return
    step = max(1, VALUES_AT_ONCE // rows.num_inputs)
    for begin in range(requested.start, requested.stop, step):
        some = slice(begin, min(begin + step, requested.stop))
        part = rows.part(some, slice(None))
        if not has_finite_scales(part):
            raise ValueError("a scale is NaN or infinite")
        yield begin - requested.start, dequantize_blocks(part)
        rows.release(part.blocks)


def stored_shape(tensor: StoredTensor, stored: StoredSource) -> tuple[int, ...]:
    """Returns the shape that the tensor of a source should have. Stacks of blocks are one matrix, others may be."""
    stack = stored.stack
    if stack is None:
        return stored.source.shape
    num_groups, *shape = stack.shape
    if not isinstance(tensor, Tensor) or tensor.dim() == len(shape):
        return num_groups * shape[0], *shape[1:]
    return num_groups, *(reversed(shape) if stack.is_transposed_in(tensor.shape) else shape)


def parts_of(name: str, tensor: StoredTensor, stored: StoredSource) -> list[Rows]:
    """Returns the rows of each part of a source that the tensor has."""
    source, stack = stored.source, stored.stack
    if stack is None or isinstance(tensor, TransposedBlockRows):
        return [_change(name, tensor, source)]
    num_groups, num_rows, *_ = stack.shape
    num_parts, found = len(stored.parts) // num_groups, list[Rows]()
    if isinstance(tensor, Tensor) and stack.num_turned:
        tensor = tensor.view(-1, tensor.shape[-1])
    elif isinstance(tensor, Tensor) and tensor.dim() < len(stack.shape):
        tensor = tensor.unflatten(0, (num_groups, -1))
    is_transposed = stack.is_transposed_in(tensor.shape)
    for part in stored.parts:
        group, number = divmod(part, num_parts)
        if stack.num_turned:
            turned = range(group * num_rows, group * num_rows + stack.num_turned)
            found.append(_read_numbers(name, tensor, turned).T)
            continue
        begin = stack.first_row + number * stack.step * source.num_rows
        end = begin + stack.step * source.num_rows
        if isinstance(tensor, Tensor):
            rows = tensor[group].T if is_transposed else tensor[group]
            found.append(rows[begin : end : stack.step])
        else:
            first = group * num_rows
            found.append(tensor.part(slice(first + begin, first + end, stack.step), slice(None)))
    return found


def _change(name: str, tensor: StoredTensor, source: Source) -> Rows:
    """Returns a tensor's rows as our parameter has them."""
    rows = tensor.T if source.change == "transposed" else tensor
    if isinstance(rows, TransposedBlockRows):
        raise BootError(f"{name}: its blocks are of columns, and cannot be read as rows")
    match source.change:
        case InterleavedHeads():
            if isinstance(rows, BlockRows):
                return replace(rows, blocks=_with_whole_heads(rows.blocks, source.change))
            return _with_whole_heads(rows, source.change)
        case tuple(factors):
            return _multiply(name, rows, factors)
        case "reshaped" if isinstance(rows, Tensor):
            return rows.reshape(source.shape)
        case "channels_last" if isinstance(rows, Tensor):
            return rows.unflatten(1, (-1, 3)).transpose(1, 2).flatten(1)
        case _:
            return rows


def _with_whole_heads(rows: Tensor, heads: InterleavedHeads) -> Tensor:
    units, unit = rows.unflatten(0, (-1, heads.unit)), heads.unit
    return with_whole_heads(units, heads.num_heads, heads.num_rotated // unit, heads.first // unit).flatten(0, 1)


def _multiply(name: str, rows: Rows, factors: Sequence[tuple[float, int]]) -> Tensor:
    """Returns the rows, each multiplied by its factor, in float32."""
    values = _read_numbers(name, rows, range(len(rows)))
    each = torch.tensor([factor for factor, num_rows in factors for _ in range(num_rows)])
    return values.float() * each[:, None]


def _read_numbers(name: str, rows: Rows, requested: range) -> Tensor:
    """Returns these rows as plain numbers."""
    if isinstance(rows, BlockRows) and not has_finite_scales(rows):
        raise bad_scales(name, rows)
    return torch.cat([values for _, values in read_values(rows, requested)])


def bad_scales(name: str, rows: BlockRows) -> BootError:
    return BootError(f"{name}: a scale of its {rows.form} blocks is NaN or infinite; the file is damaged")
