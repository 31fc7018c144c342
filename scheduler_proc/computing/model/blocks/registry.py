"""What computes each kind of block."""

from collections.abc import Mapping
from typing import Any

from scheduler_proc.computing.model.attention_description import AttentionDescription, EncoderAttentionDescription
from scheduler_proc.computing.model.blocks import (
    attention,
    dense_and_experts,
    dense_mlp,
    encoder_attention,
    expert_mlp,
    gated_delta,
    latent_attention,
    mamba,
    short_conv,
)
from scheduler_proc.computing.model.description import BlockDescription, DenseMlpDescription
from scheduler_proc.computing.model.expert_description import DenseAndExpertsDescription, ExpertMlpDescription
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription
from scheduler_proc.computing.model.latent_attention_description import LatentAttentionDescription
from scheduler_proc.computing.model.mamba_description import MambaDescription
from scheduler_proc.computing.model.short_conv_description import ShortConvDescription

BLOCKS: Mapping[type[BlockDescription], Any] = {
    AttentionDescription: attention.Block,
    EncoderAttentionDescription: encoder_attention.Block,
    LatentAttentionDescription: latent_attention.Block,
    GatedDeltaDescription: gated_delta.Block,
    MambaDescription: mamba.Block,
    ShortConvDescription: short_conv.Block,
    DenseMlpDescription: dense_mlp.Block,
    ExpertMlpDescription: expert_mlp.Block,
    DenseAndExpertsDescription: dense_and_experts.Block,
}
"""By description. A block is made with its layer's name, the description, the weights that it pops, and a context."""
