"""The angles of rotary position embeddings as tables.

Shape legend: M positions, X = head dimension / 2. All in float32 and in the order of operations of transformers, so
that a model sees the angles that it was trained with.
"""

import math

import torch
from torch import Tensor

from scheduler_proc.computing.model.description import RopeDescription

RopeTables = tuple[Tensor, Tensor]
"""The cosines and sines of the angles, each float32 [M, X]."""


def make_rope_tables(config: RopeDescription, head_dim: int, num_positions: int, device: torch.device) -> RopeTables:
    exponents_X = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies_X = _scale(config, config.theta**exponents_X)
    angles_MX = torch.arange(num_positions).float()[:, None] * frequencies_X
    return angles_MX.cos().to(device), angles_MX.sin().to(device)


def _scale(config: RopeDescription, periods_X: Tensor) -> Tensor:
    """Returns the frequencies, given 1/frequency without scaling."""
    if config.scaling == "longrope":
        return 1.0 / (torch.tensor(config.factors) * periods_X)
    frequencies_X = 1.0 / periods_X
    if config.scaling == "default":
        return frequencies_X
    if config.scaling == "linear":
        return frequencies_X / config.factor
    return _scale_llama3(config, frequencies_X)


def _scale_llama3(config: RopeDescription, frequencies_X: Tensor) -> Tensor:
    """Slows down the long waves, leaves the short ones, and goes over smoothly between (Llama 3.1, 2024)."""
    wave_lengths_X = 2 * math.pi / frequencies_X
    longest = config.original_max_positions / config.low_freq_factor
    shortest = config.original_max_positions / config.high_freq_factor
    slowed_X = frequencies_X / config.factor
    share_X = (config.original_max_positions / wave_lengths_X - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    between_X = (1 - share_X) * slowed_X + share_X * frequencies_X
    scaled_X = torch.where(wave_lengths_X > longest, slowed_X, between_X)
    return torch.where(wave_lengths_X < shortest, frequencies_X, scaled_X)
