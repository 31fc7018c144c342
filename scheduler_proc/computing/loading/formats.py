"""Chooses the format of a parameter from its role, the forms of its rows in the checkpoint, and the placement."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from kernels.arguments.block_forms import FORMS
from kernels.arguments.block_rows import Segment
from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.registry import QUANTIZING, find_block_format, has_experts
from kernels.formats.weight_format import WeightFormat
from kernels.operations.packed_linear import BLOCK, has_packed_kernel
from messages.errors import BootError
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS
from scheduler_proc.computing.model.parameters import Parameter, Part
from scheduler_proc.computing.placement import Placement

log = logging.getLogger("sluice.weights")


def choose_format(
    parameter: Parameter, part: Part, placement: Placement, segments: Sequence[Segment] = ()
) -> WeightFormat:
    """Returns the format of a rank's part of the parameter.

    `segments` are the forms of all its rows; without, they are plain numbers. A quantized tied head is a separate
    parameter; the embedding stays unquantized. Raises `BootError` if ranks would divide blocks.
    """
    role, own = parameter.role, cut_segments(segments, part)
    is_uneven = parameter.stacked_rows(part) % BLOCK != 0  # outputs of an expert or a head
    if role not in ("linear", "experts", "router", "tied", "embedding") or (role == "experts" and is_uneven):
        return PLAIN
    if placement.quantization is not None and role != "router":
        return QUANTIZING[placement.quantization] if role in ("linear", "experts") else PLAIN
    block_format = None if role == "router" else find_block_format(own, placement.dtype, placement.device)
    if block_format is not None and (role != "experts" or has_experts(block_format, own)):
        _check_columns(parameter, part, own)
        return block_format
    like = torch.empty(0, *part.shape[1:], dtype=placement.dtype, device=placement.device)
    return PACKED if role != "embedding" and has_packed_kernel(like) else PLAIN


def dtype_in_format(parameter: Parameter, weight_format: WeightFormat, placement: Placement) -> torch.dtype:
    """Returns the dtype of the parameter's numbers in this format."""
    if parameter.role == "linear" and weight_format is PACKED:
        return placement.products or placement.dtype
    return torch.float32 if parameter.role == "float32" else placement.dtype


def cut_segments(segments: Iterable[Segment], part: Part) -> tuple[Segment, ...]:
    """Returns the segments of a rank's part of the rows. Filling belongs to the last one."""
    own: list[Segment] = []
    for requested in part.rows:
        begin = 0
        for form, num_rows in segments:
            num_own = len(range(max(begin, requested.start), min(begin + num_rows, requested.stop)))
            if num_own and own and own[-1].form == form:
                own[-1] = Segment(form, own[-1].num_rows + num_own)
            elif num_own:
                own.append(Segment(form, num_own))
            begin += num_rows
    num_missing = part.shape[0] - sum(num_rows for _, num_rows in own)
    if own and num_missing:
        own[-1] = Segment(own[-1].form, own[-1].num_rows + num_missing)
    return tuple(own)


def _check_columns(parameter: Parameter, part: Part, segments: Iterable[Segment]) -> None:
    first, last, _ = part.columns.indices(parameter.shape[-1])
    for form, _ in segments:
        num_values = FORMS[form].num_values
        if first % num_values or last % num_values:
            raise BootError(
                f"--tensor-parallel: {parameter.name} is in {form}, whose blocks of {num_values} columns cannot be "
                f"divided into ranks' parts of {last - first}; --quantization int8 can, or fewer ranks"
            )


class Conversions:
    """Counts the parameters that are not loaded in the form that the checkpoint has, and logs them once."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, segments: Iterable[Segment]) -> None:
        forms = sorted({form for form, _ in segments})
        if forms != [NUMBERS]:
            self._counts[" and ".join(form or "plain numbers" for form in forms)] += 1

    def log(self, placement: Placement) -> None:
        counts = ", ".join(f"{count} in {forms}" for forms, count in self._counts.items())
        if counts and placement.quantization is not None:
            log.info("weights are rounded a second time, to %s (--quantization): %s", placement.quantization, counts)
        elif counts:
            log.info(
                "weights are converted to %s, since no kernel computes in their form, or in several together: %s",
                placement.dtype_name,
                counts,
            )
