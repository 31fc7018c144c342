"""Fills a model's parameters from a checkpoint, or with random values."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.arguments.block_rows import BlockRows, Segment, row_bytes
from kernels.cpu.huge_pages import ALIGNMENT
from kernels.formats.registry import BLOCK_FORMATS, QUANTIZING
from kernels.formats.weight_format import Rows, Weight, WeightFormat
from kernels.operations.dequantize_blocks import has_finite_scales
from messages.errors import BootError
from runtime.model_files import refused_errors
from scheduler_proc.computing.loading.formats import Conversions, choose_format, dtype_in_format
from scheduler_proc.computing.loading.quantized.stored_linear import FLOATS
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS
from scheduler_proc.computing.loading.stored_parts import bad_scales, parts_of, read_values, stored_shape
from scheduler_proc.computing.model.blocks.head import HEAD
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.family import Source, StoredSource, TensorNames
from scheduler_proc.computing.model.parameters import ByColumns, Parameter
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.model.stages import model_parameters
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.torch_import import import_fake_tensors
from scheduler_proc.computing.vision.description import TowerShard

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import (
        Checkpoint,  # it needs safetensors, which random weights do not
    )

MAX_NAMES_SHOWN, MAX_ITEM_CHARS = 6, 300
DUMMY_STD = 0.02
BYTES_AT_ONCE = 16 << 20
"""The bytes of blocks that are packed at a time, after which their memory is released."""

QUANTIZED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".absmax", ".SCB", "_blocks")
"""Ends of the names of tensors that are read only as a part of a quantized weight."""

log = logging.getLogger("sluice.weights")


AnyShard = Shard | TowerShard


def _parameters_of(shard: AnyShard) -> list[Parameter]:
    return shard.whole.parameters if isinstance(shard, TowerShard) else model_parameters(shard.whole, shard.layers)


class ShardWeights:
    """The parameters of which `shard` has a part, each in the format that suits the checkpoint and `placement`."""

    def __init__(self, shard: AnyShard, placement: Placement):
        self._placement, self._num_ranks = placement, shard.num_ranks
        self.parameters = {parameter.name: parameter for parameter in _parameters_of(shard)}
        self.parts = {name: parameter.part(shard.rank, shard.num_ranks) for name, parameter in self.parameters.items()}
        self.weights: Weights = {}
        self.conversions = Conversions()

    def add(self, name: str, pieces: Sequence[Rows]) -> None:
        """Makes the shard's part of the parameter whose rows are those of the pieces, one after another.

        Raises `BootError` if there is not enough memory, or if blocks cannot be divided among ranks; `ValueError` if
        scales of blocks are NaN or infinite.
        """
        segments = [Segment(piece.form if isinstance(piece, BlockRows) else NUMBERS, len(piece)) for piece in pieces]
        weight_format = choose_format(self.parameters[name], self.parts[name], self.placement_of(name), segments)
        is_in_blocks = weight_format.name in BLOCK_FORMATS
        if not is_in_blocks:
            self.conversions.add(segments)
        weight, first_row = self._allocate(name, weight_format, segments[-1].form), 0
        for piece in pieces:
            self._set_rows(weight, name, first_row, piece, is_in_blocks)
            first_row += len(piece)
        self._finish(weight, name, pieces)

    def placement_of(self, name: str) -> Placement:
        return self._placement.on_host if self.parameters[name].is_on_host else self._placement

    def finished(self) -> Weights:
        """Returns the weights, those in the host's memory last."""
        names = sorted(self.weights, key=lambda name: name in self.parameters and self.parameters[name].is_on_host)
        return {name: self.weights[name] for name in names}

    def _allocate(self, name: str, weight_format: WeightFormat, form: str) -> Weight:
        """Returns the weight with its filling, in blocks of `form` if it is one of blocks."""
        shape, placement = self.parts[name].shape, self.placement_of(name)
        dtype = dtype_in_format(self.parameters[name], weight_format, placement)
        try:
            weight = weight_format.allocate(shape, dtype, placement.device)
        except (RuntimeError, OSError) as error:
            num_bytes = sum(each.stored.nbytes for each in self.weights.values())
            raise BootError(
                f"the model's weights need more than {num_bytes / 2**30:.2f} GiB, which {placement.device} does not "
                f"give: {str(error).splitlines()[0]}"
            ) from None
        num_rows = sum(map(len, self.parts[name].rows))
        if num_rows < shape[0]:
            weight.set_rows(num_rows, make_zeros((shape[0] - num_rows, *shape[1:]), weight_format, form))
        return weight

    def _set_rows(self, weight: Weight, name: str, first_row: int, rows: Rows, is_in_blocks: bool) -> None:
        """Sets the shard's part of `rows`, the rows of the whole parameter from `first_row` on."""
        part, num_before = self.parts[name], 0
        for requested in part.rows:
            begin, end = max(requested.start, first_row), min(requested.stop, first_row + len(rows))
            row, found = num_before + begin - requested.start, range(begin - first_row, end - first_row)
            if isinstance(rows, BlockRows) and is_in_blocks and found:
                step = max(1, BYTES_AT_ONCE // rows.blocks.shape[1])
                for first in range(found.start, found.stop, step):
                    some = rows.part(slice(first, min(first + step, found.stop)), part.columns)
                    weight.set_rows(row + first - found.start, some)
                    rows.release(some.blocks)
            else:
                for first, values in read_values(rows, found):
                    weight.set_rows(row + first, values[:, part.columns] if values.dim() > 1 else values)
            num_before += len(requested)

    def _finish(self, weight: Weight, name: str, pieces: Sequence[Rows]) -> None:
        quantization, parameter = self._placement.quantization, self.parameters[name]
        largest_O = None
        if quantization in ("int8", "fp8") and self._num_ranks > 1 and isinstance(parameter.split, ByColumns):
            # The codes of all ranks use the same scale as a single rank would.
            values = [values for piece in pieces for _, values in read_values(piece, range(len(piece)))]
            largest = [torch.linalg.vector_norm(rows, ord=torch.inf, dim=1) for rows in values]
            largest_O = torch.cat(largest).to(self._placement.dtype)
        self.weights[name] = weight.finish(largest_O)
        if quantization is not None and parameter.role == "tied":
            self.weights[HEAD] = QUANTIZING[quantization].quantize(self.weights[name].stored)


def make_zeros(shape: tuple[int, ...], weight_format: WeightFormat, form: str) -> Rows:
    """Returns rows of zeros for a weight of this format, in blocks of `form` if it is one of blocks."""
    if weight_format.name in BLOCK_FORMATS:
        blocks = torch.zeros(shape[0], row_bytes(form, shape[1]), dtype=torch.uint8)
        return BlockRows(blocks, form, shape[1])
    return torch.zeros(shape)


def load_weights(
    shard: AnyShard, family: TensorNames, checkpoint: "Checkpoint", placement: Placement, report: Report
) -> Weights:
    """Returns the shard's part of every parameter with the checkpoint's values, placed by `placement`.

    Tensors are read, and cast or packed, one at a time, so there is never a second copy. Raises `BootError` that names
    missing and misshaped tensors; unused tensors are only logged.
    """
    shard_weights = ShardWeights(shard, placement)
    sources = _find_sources(shard, family, checkpoint)
    _log_unexpected(set(checkpoint.files) - set(sources), family)
    sources = _sources_of(shard_weights.parameters, sources)
    wrong_shapes: list[str] = []
    missing_parts = Counter[str]()
    for _, stored in _with_names(sources):
        missing_parts[stored.source.target] += len(stored.parts)
    pieces: dict[str, dict[int, Rows]] = {}
    for num_done, (name, tensor) in enumerate(checkpoint.read(set(sources)), start=1):
        shape = stored_shape(tensor, sources[name][0])
        is_reshaped = sources[name][0].source.change == "reshaped" and prod(tensor.shape) == prod(shape)
        if tuple(tensor.shape) != shape and not is_reshaped:
            wrong_shapes.append(f"{name}: expected {list(shape)}, got {list(tensor.shape)}")
            continue
        if isinstance(tensor, Tensor) and tensor.dtype not in (*FLOATS, torch.float64):
            raise BootError(
                f"{name} is {str(tensor.dtype).removeprefix('torch.')}, and config.json has no quantization_config "
                "that gives its meaning"
            )
        for stored in sources[name]:
            target = stored.source.target
            of_target = pieces.setdefault(target, {})
            with refused_errors(f"{checkpoint.files[name]}: {name}"):
                of_target |= zip(stored.first_rows, parts_of(name, tensor, stored), strict=True)
            missing_parts[target] -= len(stored.parts)
            if missing_parts[target] == 0:
                of_target = pieces.pop(target)
                try:
                    with refused_errors(f"{checkpoint.files[name]}: {name}"):
                        shard_weights.add(target, [of_target[first_row] for first_row in sorted(of_target)])
                except BootError as error:
                    raise _find_damage(target, sources, of_target) or error from error.__cause__
        report("loading weights", num_done / len(sources))
    if wrong_shapes:
        raise BootError(f"weights do not fit config.json: {_shorten(wrong_shapes, '; ')}")
    shard_weights.conversions.log(placement)
    return shard_weights.finished()


Sources = Mapping[str, Sequence[StoredSource]]
"""By the tensors' names in a checkpoint; a stack is the source of several parts of a parameter."""


def _sources_of(targets: Collection[str], sources: Sources) -> Sources:
    """Returns the sources of these parameters."""
    own = {name: [each for each in of_name if each.source.target in targets] for name, of_name in sources.items()}
    return {name: of_name for name, of_name in own.items() if of_name}


def _find_damage(target: str, sources: Sources, pieces: Mapping[int, Rows]) -> BootError | None:
    """Returns the error of a parameter with scales that are NaN or infinite, which names the tensor."""
    for name, stored in _with_names(sources):
        for rows in [pieces[row] for row in stored.first_rows if stored.source.target == target]:
            if isinstance(rows, BlockRows) and not has_finite_scales(rows):
                return bad_scales(name, rows)
    return None


def _with_names(sources: Sources) -> list[tuple[str, StoredSource]]:
    return [(name, stored) for name, of_name in sources.items() for stored in of_name]


def make_dummy_weights(shard: AnyShard, placement: Placement, report: Report) -> Weights:
    """Returns random parameters of the real shapes, the same in every run: they time like real ones."""
    shard_weights = ShardWeights(shard, placement)
    import_fake_tensors()  # which torch needs to make a generator
    generator = torch.Generator(placement.device).manual_seed(0)
    for num_done, (name, part) in enumerate(shard_weights.parts.items(), start=1):
        values = torch.zeros(part.shape, dtype=placement.dtype, device=placement.device)
        match shard_weights.parameters[name].role:
            case "norm":
                values.fill_(1.0)
            case "bias" | "float32":
                pass
            case _:
                values.normal_(std=DUMMY_STD, generator=generator)
        shard_weights.add(name, [values.to(shard_weights.placement_of(name).device)])
        report("making random weights", num_done / len(shard_weights.parts))
    return shard_weights.finished()


Segments = Mapping[str, Sequence[Segment]]
"""By parameter, the forms of its rows in the checkpoint, unless all of them are plain numbers."""


def find_segments(shard: AnyShard, family: TensorNames, checkpoint: "Checkpoint") -> Segments | None:
    """Returns the forms that the checkpoint has, `None` if only reading it shows them. Raises `BootError`."""
    segments: dict[str, list[tuple[int, Segment]]] = {}
    for name, stored in _with_names(_find_sources(shard, family, checkpoint)):
        source = stored.source
        form = checkpoint.forms.get(name, NUMBERS)
        if form is None:
            return None
        if isinstance(source.change, tuple) or (stored.stack is not None and stored.stack.num_turned):
            form = NUMBERS
        segment = Segment(form, source.num_rows)
        segments.setdefault(source.target, []).extend((row, segment) for row in stored.first_rows)
    return {target: [segment for _, segment in sorted(of_target)] for target, of_target in segments.items()}


def max_bytes(shard: AnyShard, placement: Placement, segments: Segments, *, is_on_host: bool = False) -> int:
    """Returns the maximum size in bytes of the loaded weights on the device, or of those that the host has for it."""
    num_bytes = 0
    placement = placement.on_host if is_on_host else placement
    for parameter in (each for each in _parameters_of(shard) if each.is_on_host == is_on_host):
        part = parameter.part(shard.rank, shard.num_ranks)
        weight_format = choose_format(parameter, part, placement, segments.get(parameter.name, ()))
        dtype = dtype_in_format(parameter, weight_format, placement)
        num_bytes += weight_format.num_bytes(part.shape, dtype) + ALIGNMENT
        if placement.quantization is not None and parameter.role == "tied":
            num_bytes += QUANTIZING[placement.quantization].num_bytes(part.shape, placement.dtype)
    return num_bytes


def _find_sources(shard: AnyShard, family: TensorNames, checkpoint: "Checkpoint") -> Sources:
    """Returns the sources under the names they have in the checkpoint: with the family's prefix, or all without it."""
    present = set(checkpoint.files)
    prefix = "" if any(name.startswith(family.prefix) for name in present) else family.prefix
    found: dict[str, list[StoredSource]] = {}
    for source in family.list_sources(shard.whole):
        for name, stored in _find_tensors(source, prefix, present):
            found.setdefault(name, []).append(stored)
    missing = [name for name in found if name not in present]
    if missing:
        there = _shorten(sorted(present - found.keys())) or "no others"
        is_quantized = any(name.endswith(QUANTIZED) for name in present)
        why = " (quantized weights, but config.json has no quantization_config)" * is_quantized
        raise BootError(
            f"the checkpoint lacks {len(missing)} of {len(found)} tensors: {_shorten(missing)}; it has {there}{why}"
        )
    return found


def _find_tensors(source: Source, prefix: str, present: Collection[str]) -> list[tuple[str, StoredSource]]:
    """Returns the tensors of a source by the names that are present, if some are; names there lack the prefix."""
    for stack in source.stacks:
        if (name := stack.name.removeprefix(prefix)) in present:
            return [(name, StoredSource(source, range(source.parts.count), stack))]
    names = [name.removeprefix(prefix) for name in source.names]
    if not names:
        missing = " or ".join(stack.name.removeprefix(prefix) for stack in source.stacks)
        return [(missing, StoredSource(source, range(source.parts.count)))]
    usual = next((name for name in names if any(part in present for part in source.of_parts(name))), names[0])
    return [(name, StoredSource(source, range(part, part + 1))) for part, name in enumerate(source.of_parts(usual))]


def _log_unexpected(names: set[str], family: TensorNames) -> None:
    unexpected = sorted(name for name in names if not family.ignores(name))
    if unexpected:
        log.warning("the checkpoint holds %d tensors not used: %s", len(unexpected), _shorten(unexpected))


def _shorten(items: Iterable[str], separator: str = ", ") -> str:
    shown = [item if len(item) <= MAX_ITEM_CHARS else f"{item[:MAX_ITEM_CHARS]}…" for item in items]
    more = len(shown) - MAX_NAMES_SHOWN
    return separator.join(shown[:MAX_NAMES_SHOWN]) + (f"{separator}and {more} more" if more > 0 else "")
