"""A layer of attention and a gated MLP in steps of few tokens: by five kernels, where its blocks take ten.

Shape legend: T tokens of the step, E embedding size, A values of all query heads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.few_rows import AddTo, Gate, PlainMatrix, RowNorm, StoreHeads
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.formats.weight_format import Weight
from kernels.operations.few_rows_linear import few_rows_linear, takes_few_rows
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.blocks.attention import attend, room_like
from scheduler_proc.computing.model.blocks.attention_parts import pop_head_norms, pop_options
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.norm import pop_scale
from scheduler_proc.computing.model.description import DenseMlpDescription, LayerDescription
from scheduler_proc.computing.step.features.windows import windowed
from scheduler_proc.computing.step.inputs import AttentionKind
from scheduler_proc.computing.step.rows import StepRows

GATES = {"silu_gated": Gate("silu"), "gelu_tanh_gated": Gate("tanh"), "gelu_gated": Gate("exact")}
HEAD_DIMS = (64, 128, 256)
"""The activations and heads that the kernel has."""

LINEARS = ("qkv", "attention_out", "mlp_in", "mlp_out")


class FewRowsLayer(NamedTuple):
    """It shares the weights of the layer's blocks."""

    norms: Sequence[RowNorm]
    matrices: Sequence[PlainMatrix]
    """`LINEARS`"""
    gate: Gate
    kind: AttentionKind
    options: AttentionOptions
    tables: RopeTables
    head_norms: HeadNorms | None

    def takes(self, rows: StepRows, residual_TE: Tensor) -> bool:
        """True if it is to compute a step of these tokens."""
        return rows.lora is None and takes_few_rows(residual_TE)

    def apply(self, residual_TE: Tensor, rows: StepRows, attended: Tensor, memory: PagedKV) -> None:
        """Applies the layer to the residual stream in place; first stores K and V."""
        (before_attention, before_mlp), (qkv, out, gate_up, down) = self.norms, self.matrices
        step = rows.step if self.options.window is None else windowed(rows.step)
        heads = StoreHeads(memory, self.tables, step.positions, step.slots, self.head_norms)
        query_THD = few_rows_linear(residual_TE, qkv, before_attention, heads)
        attended_TA = attend(query_THD, step, memory, self.kind, self.options, room_like(query_THD, attended))
        few_rows_linear(attended_TA, out, None, AddTo(residual_TE))
        gated_TF = few_rows_linear(residual_TE, gate_up, before_mlp, self.gate)
        few_rows_linear(gated_TF, down, None, AddTo(residual_TE))


def find_few_rows(
    name: str, layer: LayerDescription, weights: Mapping[str, Weight], context: BlockContext
) -> FewRowsLayer | None:
    """Returns the layer if the kernel does all that it needs and reads its weights as plain matrices; pops nothing."""
    norms = {norm: getattr(layer, norm) for norm in ("attention_norm", "mlp_norm")}
    (attention, *_), mlp = (*layer.mixers, None), layer.mlp
    if layer != LayerDescription(mixers=layer.mixers[:1], mlp=mlp, **norms) or context.parallel.size > 1:
        return None
    if not (isinstance(attention, AttentionDescription) and _is_simple(attention) and attention.rope is not None):
        return None
    if not isinstance(mlp, DenseMlpDescription) or mlp.activation not in GATES:
        return None
    if any(norm is None or norm.kind != "rms" or norm.replaces_stream for norm in norms.values()):
        return None
    matrices, own = list(_find_matrices(weights, *(f"{name}.{linear}" for linear in LINEARS))), dict(weights)
    if len(matrices) < len(LINEARS):
        return None
    row_norms = [RowNorm(pop_scale(own, f"{name}.{norm}", its), its.eps) for norm, its in norms.items()]
    options = replace(pop_options(name, attention, own, context), next_weight=matrices[1].weight)
    tables, head_norms = context.rope_tables(attention.rope, attention.head_dim), pop_head_norms(name, attention, own)
    assert attention.kind is not None
    return FewRowsLayer(row_norms, matrices, GATES[mlp.activation], attention.kind, options, tables, head_norms)


def _find_matrices(weights: Mapping[str, Weight], *names: str) -> Iterator[PlainMatrix]:
    """Yields the linear layers with these names that the device's kernels read as plain matrices."""
    for name in names:
        matrix, bias = weights[f"{name}.weight"].matrix, weights.get(f"{name}.bias")
        if matrix is not None:
            yield PlainMatrix(matrix, None if bias is None else bias.stored)


def _is_simple(attention: AttentionDescription) -> bool:
    """True if the kernel does all that these heads need: see `StoreHeads`."""
    others = attention.has_gate, attention.has_axes, attention.norms_values, attention.norms_whole_qk
    is_whole = attention.num_rotated == attention.head_dim
    return bool(attention.cache) and not any(others) and is_whole and attention.head_dim in HEAD_DIMS
