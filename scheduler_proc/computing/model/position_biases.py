"""Biases of scores by the distance of two tokens, as in MPNet and T5.

Nearer distances have a bucket each, further ones share buckets whose width grows; there are buckets for each direction
(Raffel et al., "Exploring the Limits of Transfer Learning", 2020, section 2.1).

Shape legend: H heads, B buckets, X distances from -MAX_DISTANCE to MAX_DISTANCE.
"""

import math

import torch
from torch import Tensor

from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.parameters import ByRows, Parameter

POSITION_BIAS = "position_bias"
MAX_DISTANCE = 128
"""From here on all distances share a bucket."""


def bias_parameters(model: ModelDescription) -> list[Parameter]:
    if not model.num_buckets:
        return []
    (num_heads,) = {attention.num_heads for attention in model.find(AttentionDescription)}
    return [Parameter(POSITION_BIAS, (num_heads, model.num_buckets), "float32", ByRows(((num_heads, 1),)))]


def spread_buckets(bias_HB: Tensor) -> Tensor:
    """Returns the bias of each distance of a key behind its query, [H, X]."""
    num_each = bias_HB.shape[1] // 2
    num_exact = num_each // 2
    distance_X = torch.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    size_X = distance_X.abs()
    growth_X = torch.log(size_X.clamp(min=1).float() / num_exact) / math.log(MAX_DISTANCE / num_exact)
    shared_X = (num_exact + (growth_X * (num_each - num_exact)).long()).clamp(max=num_each - 1)
    bucket_X = torch.where(size_X < num_exact, size_X, shared_X) + (distance_X > 0) * num_each
    return bias_HB[:, bucket_X.to(bias_HB.device)].contiguous()
