"""The angles of rotary position embeddings as tables.

Shape legend: M positions, X pairs of rotated values. All in float32 and in the order of operations of transformers, so
that a model sees the angles that it was trained with.

Transformers chooses the frequencies of "longrope" and "dynamic" by the length of the sequence, which changes those of
keys that are already in the cache. Here the longest context that is served decides, once for all sequences: a request
gets the same answer whatever is in the cache.
"""

import logging
import math

import torch
from torch import Tensor

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.model.description import RopeDescription

log = logging.getLogger("sluice.model")


def make_rope_tables(config: RopeDescription, head_dim: int, num_positions: int, device: torch.device) -> RopeTables:
    """Returns the tables of a model that serves contexts of up to `num_positions`."""
    rotated = config.num_rotated(head_dim)
    exponents_X = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    frequencies_X = _scale(config, exponents_X, rotated, num_positions)
    positions_M1 = torch.arange(num_positions).float()[:, None]
    angles_MX = positions_M1 * frequencies_X
    tables = RopeTables(angles_MX.cos() * config.attention_factor, angles_MX.sin() * config.attention_factor)
    if config.query_growth:
        growth_M1 = 1 + config.query_growth * torch.log(1 + (positions_M1 / config.original_max_positions).floor())
        cosines, sines = (torch.cat((table, table * growth_M1)) for table in tables[:2])
        tables = RopeTables(cosines, sines, query_row=num_positions)
    return RopeTables(tables.cosines.to(device), tables.sines.to(device), tables.query_row)


def _scale(config: RopeDescription, exponents_X: Tensor, rotated: int, num_positions: int) -> Tensor:
    """Returns the frequencies."""
    theta = config.theta
    if config.scaling == "dynamic":
        growth = config.factor * max(num_positions / config.original_max_positions, 1.0) - (config.factor - 1)
        theta *= growth ** (rotated / max(rotated - 2, 1))
    periods_X = theta**exponents_X
    if config.scaling == "longrope":
        return 1.0 / (torch.tensor(_choose_factors(config, num_positions)) * periods_X)
    frequencies_X = 1.0 / periods_X
    if config.scaling == "linear":
        return frequencies_X / config.factor
    if config.scaling == "proportional":
        frequencies_X[int(config.part * rotated // 2) :] = 0
        return frequencies_X / config.factor
    if config.scaling == "yarn":
        return _scale_yarn(config, periods_X)
    if config.scaling == "llama3":
        return _scale_llama3(config, frequencies_X)
    return frequencies_X


def _choose_factors(config: RopeDescription, num_positions: int) -> tuple[float, ...]:
    original = config.original_max_positions
    if num_positions <= original:
        return config.short_factors
    if config.short_factors != config.long_factors:
        log.warning(
            "contexts of up to %d tokens are served: rotary positions have the factors of long contexts, also in short "
            "ones; --max-model-len %d has those of short contexts",
            num_positions,
            original,
        )
    return config.long_factors


def _scale_yarn(config: RopeDescription, periods_X: Tensor) -> Tensor:
    """Slows down the frequencies of few rotations within the original context (Peng et al., "YaRN", 2023)."""
    num_pairs = len(periods_X)

    def find_pair(num_rotations: float) -> float:
        """Returns the (fractional) index of the pair of values that rotates as often within the original context."""
        return (
            num_pairs * math.log(config.original_max_positions / (num_rotations * 2 * math.pi)) / math.log(config.theta)
        )

    first, last = find_pair(config.beta_fast), find_pair(config.beta_slow)
    if config.has_whole_bounds:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    last = last + 0.001 if first == last else last
    share_X = 1 - ((torch.arange(num_pairs, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    return 1.0 / (config.factor * periods_X) * (1 - share_X) + 1.0 / periods_X * share_X


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
