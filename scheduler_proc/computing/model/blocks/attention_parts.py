"""What attention is computed with in addition to its matrices."""

import torch

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.rows import HeadNorms
from scheduler_proc.computing.model.attention_description import QK_NORMS, AttentionDescription
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.norm import pop_scale
from scheduler_proc.computing.model.blocks.weights import Weights, pop_tensor


def pop_options(
    layer: str, attention: AttentionDescription, weights: Weights, context: BlockContext
) -> AttentionOptions:
    sinks = pop_tensor(weights, f"{layer}.sinks").float() if attention.has_sinks else None
    options = attention.window, attention.softcap, sinks, context.biases, attention.sees_spans
    return AttentionOptions(attention.scale, *options)


def pop_head_norms(layer: str, attention: AttentionDescription, weights: Weights) -> HeadNorms | None:
    if attention.qk_norm is None:
        return None
    names = QK_NORMS if attention.kv_layer is None else QK_NORMS[:1]
    query, *keys = (pop_scale(weights, f"{layer}.{name}", attention.qk_norm) for name in names)
    value = torch.ones_like(query) if attention.norms_values else None
    return HeadNorms(query, keys[0] if keys else query, attention.qk_norm.eps, value)
