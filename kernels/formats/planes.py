"""A weight in the forms of its checkpoint, in planes for the kernels of `planes_linear.py`: the format of GPUs.

Shape legend: T tokens, I inputs, O outputs of all segments.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels.arguments.block_forms import FLOAT_FORMS, FORMS
from kernels.arguments.block_rows import BlockRows, Segment
from kernels.arguments.code_planes import CodePlanes
from kernels.dispatch import has_fp8
from kernels.formats.weight_format import Linear, Ranks, Rows, Weight, WeightFormat
from kernels.operations.code_planes import num_plane_bytes, set_planes, view_planes
from kernels.operations.dequantize_blocks import has_finite_scales
from kernels.operations.expert_codes import planes_experts
from kernels.operations.expert_linear import ExpertLinear
from kernels.operations.gelu import GeluKind, gelu
from kernels.operations.planes_linear import look_up_planes, planes_linear
from kernels.operations.scaled_linear import has_scaled_products, scaled_linear

PLANES = "planes"


@dataclass(frozen=True)
class PlanesWeight(Weight):
    """`parts` lie in `stored`: the planes of each segment, as q, k and v of a GGUF file can have different forms."""

    format: "PlanesFormat"
    stored: Tensor
    parts: tuple[CodePlanes, ...]
    dtype: torch.dtype

    def set_rows(self, first_row: int, rows: Rows) -> None:
        """Raises `ValueError` if a scale is NaN or infinite."""
        assert isinstance(rows, BlockRows)
        if not has_finite_scales(rows):
            raise ValueError("a scale is NaN or infinite")
        for planes, segment_rows, (form, _) in zip(self.parts, self._rows(), self.format.segments, strict=True):
            begin, end = max(first_row, segment_rows.start), min(first_row + len(rows), segment_rows.stop)
            if begin < end:
                assert rows.form == form
                set_planes(
                    planes,
                    begin - segment_rows.start,
                    rows.part(slice(begin - first_row, end - first_row), slice(None)),
                )

    def linear(self, bias_O: Tensor | None, activation: GeluKind | None) -> Linear:
        """One product a segment, each into its columns of the output."""
        rows = list(self._rows())
        biases = [None if bias_O is None else bias_O[each.start : each.stop] for each in rows]
        num_outputs = rows[-1].stop

        def apply(x_TI: Tensor, out_TO: Tensor | None = None, /) -> Tensor:
            if out_TO is None:
                out_TO = x_TI.new_empty(len(x_TI), num_outputs)
            for planes, each, bias in zip(self.parts, rows, biases, strict=True):
                multiply = scaled_linear if has_scaled_products(planes) else planes_linear
                multiply(x_TI, planes, bias, out_TO[:, each.start : each.stop])
            return out_TO if activation is None else gelu(out_TO, activation)

        return apply

    def experts(self, bias_O: Tensor | None, ranks: Ranks | None = None) -> ExpertLinear:
        (planes,) = self.parts
        return partial(planes_experts, planes, bias_O)

    def look_up(self, row_T: Tensor) -> Tensor:
        (planes,) = self.parts
        return look_up_planes(planes, row_T, self.dtype)

    def _rows(self) -> Iterator[range]:
        first = 0
        for _, num_rows in self.format.segments:
            yield range(first, first + num_rows)
            first += num_rows


@dataclass(frozen=True)
class PlanesFormat(WeightFormat):
    segments: tuple[Segment, ...]
    name = PLANES

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return sum(num_plane_bytes(form, num_rows, shape[1]) for form, num_rows in self.segments)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> PlanesWeight:
        """Returns a weight of zeros: rows that fill a rank's part are not set."""
        num_outputs, num_inputs = shape
        assert num_outputs == sum(num_rows for _, num_rows in self.segments)
        stored = torch.zeros(self.num_bytes(shape, dtype), dtype=torch.uint8, device=device)
        sizes = [num_plane_bytes(form, num_rows, num_inputs) for form, num_rows in self.segments]
        parts = zip(stored.split(sizes), self.segments, strict=True)
        views = tuple(view_planes(part, form, num_rows, num_inputs) for part, (form, num_rows) in parts)
        return PlanesWeight(self, stored, views, dtype)


def has_planes(segments: Sequence[Segment], device: torch.device) -> bool:
    """True if the GPU computes weights of these forms in planes: fp8 codes if it has fp8, plain numbers never."""
    return all(form in FORMS and (form not in FLOAT_FORMS or has_fp8(device)) for form, _ in segments)
