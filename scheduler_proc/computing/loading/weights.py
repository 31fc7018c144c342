"""Fills a model's parameters from a checkpoint, or with random values."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.cpu.huge_pages import ALIGNMENT
from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.registry import QUANTIZING
from kernels.formats.weight_format import Weight, WeightFormat
from kernels.operations.packed_linear import has_packed_kernel
from messages.errors import BootError
from scheduler_proc.computing.model.blocks.head import HEAD
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import model_parameters
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import HEAD_NAME, Family, Source
from scheduler_proc.computing.model.parameters import ByColumns, Parameter, Part
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.torch_import import import_fake_tensors

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import (
        Checkpoint,  # it needs safetensors, which random weights do not
    )

MAX_NAMES_SHOWN = 6
DUMMY_STD = 0.02

log = logging.getLogger("sluice.weights")


class ShardWeights:
    """The parameters of which `shard` has a part, each in its chosen format, uninitialised at first.

    Raises `BootError` if there is not enough memory.
    """

    def __init__(self, shard: Shard, placement: Placement):
        self._placement, self._num_ranks = placement, shard.num_ranks
        self.parameters = {parameter.name: parameter for parameter in model_parameters(shard.whole)}
        self.parts = {name: parameter.part(shard.rank, shard.num_ranks) for name, parameter in self.parameters.items()}
        self.weights: Weights = {}
        try:
            for name in self.parameters:
                self.weights[name] = self._allocate(name)
        except (RuntimeError, OSError) as error:
            num_bytes = sum(prod(part.shape) for part in self.parts.values()) * placement.dtype.itemsize
            raise BootError(
                f"the model's weights need {num_bytes / 2**30:.2f} GiB in {placement.dtype_name}, which "
                f"{placement.device} does not give: {str(error).splitlines()[0]}"
            ) from None

    def _allocate(self, name: str) -> Weight:
        part, placement = self.parts[name], self._placement
        weight_format = choose_format(self.parameters[name], part, placement)
        weight = weight_format.allocate(part.shape, placement.dtype, placement.device)
        num_rows = sum(map(len, part.rows))
        if num_rows < part.shape[0]:  # filling
            weight.set_rows(num_rows, torch.zeros(part.shape[0] - num_rows, *part.shape[1:], dtype=placement.dtype))
        return weight

    def set_rows(self, name: str, first_row: int, rows: Tensor) -> None:
        """Sets the shard's part of `rows`, the rows of the whole parameter from `first_row` on."""
        part, num_before = self.parts[name], 0
        for wanted in part.rows:
            begin, end = max(wanted.start, first_row), min(wanted.stop, first_row + len(rows))
            if begin < end:
                found = rows[begin - first_row : end - first_row]
                row = num_before + begin - wanted.start
                self.weights[name].set_rows(row, found[:, part.columns] if rows.dim() > 1 else found)
            num_before += len(wanted)

    def finish(self, name: str, rows: Tensor) -> None:
        """Finishes a parameter once all its rows are set; `rows`: the latest rows of the whole parameter."""
        quantization, parameter = self._placement.quantization, self.parameters[name]
        largest_O = None
        if quantization == "int8" and self._num_ranks > 1 and isinstance(parameter.split, ByColumns):
            # The codes of all ranks use the same scale as a single rank would.
            largest_O = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1).to(self._placement.dtype)
        self.weights[name] = self.weights[name].finish(largest_O)
        if quantization is not None and parameter.role == "tied":
            self.weights[HEAD] = QUANTIZING[quantization].quantize(self.weights[name].stored)


def choose_format(parameter: Parameter, part: Part, placement: Placement) -> WeightFormat:
    """Returns the format of a rank's part of the parameter.

    A quantized tied head is a separate parameter; the embedding stays unquantized.
    """
    if parameter.role not in ("linear", "tied"):
        return PLAIN
    if placement.quantization is not None:
        return QUANTIZING[placement.quantization] if parameter.role == "linear" else PLAIN
    like = torch.empty(0, *part.shape[1:], dtype=placement.dtype, device=placement.device)
    return PACKED if has_packed_kernel(like) else PLAIN


def load_weights(
    shard: Shard, family: Family, checkpoint: "Checkpoint", placement: Placement, report: Report
) -> Weights:
    """Returns the shard's part of every parameter with the checkpoint's values, placed by `placement`.

    Tensors are read, and cast or packed, one at a time, so there is never a second copy. Raises `BootError` that names
    missing and misshaped tensors; unused tensors are only logged.
    """
    sources = _find_sources(family.list_sources(shard.whole), family.prefix, set(checkpoint.files))
    _log_unexpected(set(checkpoint.files) - set(sources), family)
    shard_weights = ShardWeights(shard, placement)
    wrong_shapes: list[str] = []
    missing_rows = Counter[str]()
    for source in sources.values():
        missing_rows[source.target] += source.num_rows
    for num_done, (name, tensor) in enumerate(checkpoint.read(set(sources)), start=1):
        source = sources[name]
        if tuple(tensor.shape) != source.shape:
            wrong_shapes.append(f"{name}: expected {list(source.shape)}, got {list(tensor.shape)}")
            continue
        rows = tensor.T if source.is_transposed else tensor
        shard_weights.set_rows(source.target, source.first_row, rows)
        missing_rows[source.target] -= source.num_rows
        if missing_rows[source.target] == 0:
            shard_weights.finish(source.target, rows)
        report("loading weights", num_done / len(sources))
    if wrong_shapes:
        raise BootError(f"weights do not fit config.json: {_shorten(wrong_shapes, '; ')}")
    return shard_weights.weights


def make_dummy_weights(shard: Shard, placement: Placement, report: Report) -> Weights:
    """Returns random parameters of the real shapes, the same in every run: they time like real ones."""
    shard_weights = ShardWeights(shard, placement)
    import_fake_tensors()  # which torch needs to make a generator
    generator = torch.Generator(placement.device).manual_seed(0)
    for num_done, (name, part) in enumerate(shard_weights.parts.items(), start=1):
        values = torch.zeros(part.shape, dtype=placement.dtype, device=placement.device)
        match shard_weights.parameters[name].role:
            case "norm":
                values.fill_(1.0)
            case "bias":
                pass
            case _:
                values.normal_(std=DUMMY_STD, generator=generator)
        shard_weights.weights[name].set_rows(0, values)
        shard_weights.finish(name, values)
        report("making random weights", num_done / len(shard_weights.parts))
    return shard_weights.weights


def most_bytes(shard: Shard, placement: Placement) -> int:
    """Returns the maximum size of the weights in bytes, without quantization."""
    num_bytes = 0
    for parameter in model_parameters(shard.whole):
        part = parameter.part(shard.rank, shard.num_ranks)
        most_rows = part.shape[0] + choose_format(parameter, part, placement).most_rows_added
        num_bytes += most_rows * prod(part.shape[1:]) * placement.dtype.itemsize + ALIGNMENT
    return num_bytes


def _find_sources(sources: list[Source], prefix: str, present: set[str]) -> dict[str, Source]:
    """Returns the sources under the names they have in the checkpoint: with `prefix`, or all without it."""
    if not any(name.startswith(prefix) for name in present):
        sources = [replace(source, name=source.name.removeprefix(prefix)) for source in sources]
    sources = [
        replace(source, name=source.other_name)
        if source.name not in present and source.other_name in present
        else source
        for source in sources
    ]
    missing = [source.name for source in sources if source.name not in present]
    if missing:
        there = _shorten(sorted(present - {source.name for source in sources})) or "no others"
        raise BootError(
            f"the checkpoint lacks {len(missing)} of {len(sources)} tensors: {_shorten(missing)}; it has {there}"
        )
    return {source.name: source for source in sources}


def has_own_head(model: ModelDescription, family: Family, checkpoint: "Checkpoint") -> bool:
    """True if config.json ties the head to the embedding and the checkpoint has another head, which is logged."""
    source = next(source for source in family.list_sources(model) if source.target == "embedding")
    names = [name for name in (source.name, source.name.removeprefix(family.prefix)) if name in checkpoint.files]
    if not model.has_tied_head or HEAD_NAME not in checkpoint.files or not names:
        return False
    tensors = dict(checkpoint.read({names[0], HEAD_NAME}))
    embedding, head = tensors[names[0]], tensors[HEAD_NAME]
    if embedding.dtype == head.dtype and torch.equal(embedding, head):
        return False
    log.warning(
        "config.json ties the head to the embedding (tie_word_embeddings), but %s differs from it: it is used",
        HEAD_NAME,
    )
    return True


def _log_unexpected(names: set[str], family: Family) -> None:
    unexpected = sorted(name for name in names if not family.ignored.fullmatch(name))
    if unexpected:
        log.warning("the checkpoint holds %d tensors not used: %s", len(unexpected), _shorten(unexpected))


def _shorten(items: Iterable[str], separator: str = ", ") -> str:
    shown = list(items)
    more = len(shown) - MAX_NAMES_SHOWN
    return separator.join(shown[:MAX_NAMES_SHOWN]) + (f"{separator}and {more} more" if more > 0 else "")
