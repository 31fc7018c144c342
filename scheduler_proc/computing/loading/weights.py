"""Fills a decoder's parameters from a checkpoint, or with random values."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.cpu.huge_memory import HUGE_PAGE
from kernels.cpu.huge_pages import empty_huge
from kernels.packed_linear import (
    BLOCK,
    PackedWeight,
    allocate_packed,
    has_packed_kernel,
    pack_rows,
    pack_where_faster,
)
from kernels.quantized_linear import quantize
from messages.errors import BootError
from scheduler_proc.computing.loading.placement import Placement
from scheduler_proc.computing.model.decoder_config import DecoderConfig, Shape, parameter_shapes
from scheduler_proc.computing.model.families.family import HEAD_NAME, Family, Source
from scheduler_proc.computing.model.sharding import Part, Shard
from scheduler_proc.computing.torch_import import import_fake_tensors

if TYPE_CHECKING:
    from scheduler_proc.computing.loading.checkpoint import (
        Checkpoint,  # it needs safetensors, which random weights do not
    )

MAX_NAMES_SHOWN = 6
DUMMY_STD = 0.02

Weights = dict[str, Any]
"""Parameters by name: tensors, and for linear layers' weights `QuantizedWeight` where the placement says so, or
`PackedWeight` where they were packed from the checkpoint."""

LINEAR_WEIGHT = re.compile(r"head|layers\.\d+\.(qkv|attention_out|mlp_in|mlp_out)\.weight")
Report = Callable[[str, float | None], None]

log = logging.getLogger("sluice.weights")


def load_weights(
    shard: Shard, family: Family, checkpoint: "Checkpoint", placement: Placement, report: Report
) -> Weights:
    """Returns the shard's part of every parameter with the checkpoint's values, as and where the placement says.

    One tensor at a time is read, and cast or packed, so there is never a second copy. Raises `BootError` that names
    missing and misshaped tensors; what the model does not need is only logged.
    """
    config = shard.own
    sources = _find_sources(family.list_sources(shard.whole), family.prefix, set(checkpoint.files))
    _log_unexpected(set(checkpoint.files) - set(sources), family)
    weights = allocate(parameter_shapes(config), placement, packs_linears=placement.weight_bits is None)
    for name in weights.keys() & {"embedding", "head"}:
        if isinstance(weights[name], Tensor):
            weights[name][len(shard.part(name).rows[0]) :].zero_()
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
        _set_part(weights[source.target], shard.part(source.target), source.first_row, rows)
        missing_rows[source.target] -= source.num_rows
        if missing_rows[source.target] == 0:
            _quantize(
                weights, source.target, config, placement, _largest_of_whole(shard, source.target, rows, placement)
            )
        report("loading weights", num_done / len(sources))
    if wrong_shapes:
        raise BootError(f"weights do not fit config.json: {_shorten(wrong_shapes, '; ')}")
    return weights


def pack_linears(weights: Weights) -> Weights:
    """Packs, in place, what is not packed yet and has a kernel for it, so that a decoder has nothing to pack."""
    for name in _find_linears(weights):
        weights[name] = pack_where_faster(weights[name])
    return weights


def _find_linears(names: Collection[str]) -> list[str]:
    """Returns the names of linear layers' weights: without a head that is the embedding."""
    return [name for name in names if LINEAR_WEIGHT.fullmatch(name) or (name == "embedding" and "head" not in names)]


def _set_part(weight: Tensor | PackedWeight, part: Part, first_row: int, rows: Tensor) -> None:
    """Sets what is in `part` of `rows`, which are those of the whole parameter from `first_row` on."""
    num_before = 0
    for wanted in part.rows:
        begin, end = max(wanted.start, first_row), min(wanted.stop, first_row + len(rows))
        if begin < end:
            found = rows[begin - first_row : end - first_row]
            _set_rows(weight, num_before + begin - wanted.start, found[:, part.columns] if rows.dim() > 1 else found)
        num_before += len(wanted)


def _set_rows(weight: Tensor | PackedWeight, first_row: int, rows: Tensor) -> None:
    if isinstance(weight, PackedWeight):
        pack_rows(weight.packed, first_row, rows)
    else:
        weight[first_row : first_row + len(rows)].copy_(rows)


def make_dummy_weights(config: DecoderConfig, placement: Placement, report: Report) -> Weights:
    """Returns random parameters of the real shapes, the same in every run: they time like real ones."""
    weights = allocate(parameter_shapes(config), placement)
    import_fake_tensors()  # which torch needs to make a generator
    generator = torch.Generator(placement.device).manual_seed(0)
    for num_done, name in enumerate(list(weights), start=1):
        tensor = weights[name]
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        elif name.endswith(".bias"):
            tensor.zero_()
        else:
            tensor.normal_(std=DUMMY_STD, generator=generator)
        _quantize(weights, name, config, placement)
        report("making random weights", num_done / len(weights))
    return weights


def _largest_of_whole(shard: Shard, name: str, rows: Tensor, placement: Placement) -> Tensor | None:
    """Returns the largest magnitude of each of `rows`, of a parameter whose columns ranks share as codes of 8 bits.

    The codes of all ranks have one scale then, that of one rank.
    """
    if placement.weight_bits != 8 or not shard.divides_columns(name):
        return None
    return torch.linalg.vector_norm(rows, ord=torch.inf, dim=1).to(placement.dtype)


def _quantize(
    weights: Weights, name: str, config: DecoderConfig, placement: Placement, largest_O: Tensor | None = None
) -> None:
    """Quantizes one parameter whose values are there, if it is one to be quantized.

    A tied head is a parameter of its own then: the embedding is looked up as it is.
    """
    if placement.weight_bits is None:
        return
    if LINEAR_WEIGHT.fullmatch(name):
        weights[name] = quantize(weights[name], placement.weight_bits, largest_O)
    elif name == "embedding" and config.has_tied_head:
        weights["head"] = quantize(weights[name], placement.weight_bits)


def most_bytes(config: DecoderConfig, placement: Placement) -> int:
    """Returns the bytes that `load_weights` and `pack_linears` allocate at most, where they do not quantize."""
    sizes = ((shape[0] + BLOCK) * prod(shape[1:]) for shape in parameter_shapes(config).values())
    return placement.dtype.itemsize * sum(sizes)


def allocate(shapes: dict[str, Shape], placement: Placement, packs_linears: bool = False) -> Weights:
    """Returns uninitialized tensors, large ones on a CPU in huge pages.

    With `packs_linears` the weights of linear layers are packed ones where there is a kernel for these. Raises
    `BootError` where there is not enough memory.
    """
    linears = _find_linears(shapes) if packs_linears else []
    try:
        return {
            name: PackedWeight(allocate_packed(shape[0], shape[1], placement.dtype), shape[0])
            if name in linears and _can_pack(shape, placement)
            else _empty(shape, placement)
            for name, shape in shapes.items()
        }
    except (RuntimeError, OSError) as error:
        num_bytes = sum(torch.Size(shape).numel() for shape in shapes.values()) * placement.dtype.itemsize
        raise BootError(
            f"the model's weights need {num_bytes / 2**30:.2f} GiB in {placement.dtype_name}, which {placement.device} "
            f"does not give: {str(error).splitlines()[0]}"
        ) from None


def _can_pack(shape: Shape, placement: Placement) -> bool:
    return has_packed_kernel(torch.empty(0, *shape[1:], dtype=placement.dtype, device=placement.device))


def _empty(shape: Shape, placement: Placement) -> Tensor:
    if not placement.is_cuda and torch.Size(shape).numel() * placement.dtype.itemsize >= HUGE_PAGE:
        return empty_huge(shape, placement.dtype)
    return torch.empty(shape, dtype=placement.dtype, device=placement.device)


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


def has_own_head(config: DecoderConfig, family: Family, checkpoint: "Checkpoint") -> bool:
    """True if config.json ties the head to the embedding and the checkpoint has another head, which is logged."""
    source = next(source for source in family.list_sources(config) if source.target == "embedding")
    names = [name for name in (source.name, source.name.removeprefix(family.prefix)) if name in checkpoint.files]
    if not config.has_tied_head or HEAD_NAME not in checkpoint.files or not names:
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
