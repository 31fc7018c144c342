"""What each rank of several has of a decoder (`--tensor-parallel`): one table for all families. Plain values, no torch.

Linear layers that read the residual stream are divided by their outputs, those that write it by their inputs
(Megatron-LM, arXiv:1909.08053, section 3); embedding and head by the entries of the vocabulary.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate

from messages.errors import BootError
from scheduler_proc.computing.model.decoder_config import DecoderConfig, Shape, parameter_shapes

IN_LAYER = re.compile(r"layers\.\d+\.")

Sections = Callable[[DecoderConfig], list[tuple[int, int]]]


def _heads(config: DecoderConfig) -> list[tuple[int, int]]:
    return [(num, config.head_dim) for num in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]


def _mlp(config: DecoderConfig) -> list[tuple[int, int]]:
    return [(config.mlp_size, 1)] * (config.mlp_in_size // config.mlp_size)


def _vocabulary(config: DecoderConfig) -> list[tuple[int, int]]:
    return [(config.vocab_size, 1)]


BY_ROWS: dict[str, Sections] = {
    "embedding": _vocabulary,
    "head": _vocabulary,
    "qkv.weight": _heads,
    "qkv.bias": _heads,
    "mlp_in.weight": _mlp,
    "mlp_in.bias": _mlp,
}
"""Parameters of which a rank has some rows: of each section, which is so many units of so many rows, its share."""

BY_COLUMNS: dict[str, Callable[[DecoderConfig], int]] = {
    "attention_out.weight": lambda config: config.num_heads * config.head_dim,
    "mlp_out.weight": lambda config: config.mlp_size,
}
"""Parameters of which a rank has some of so many columns. All others each rank has whole."""


@dataclass(frozen=True)
class Part:
    """A rank's part of a parameter: ranges of rows, which lie one after another in it, and columns of these."""

    rows: tuple[range, ...]
    columns: slice = field(default_factory=lambda: slice(None))


@dataclass(frozen=True)
class Shard:
    """What rank `rank` of `num_ranks` has of the decoder `whole`. Raises `BootError` where that cannot be divided."""

    whole: DecoderConfig
    rank: int = 0
    num_ranks: int = 1

    def __post_init__(self) -> None:
        num_ranks, num_kv_heads = self.num_ranks, self.whole.num_kv_heads
        for num, name in ((self.whole.num_heads, "attention heads"), (self.whole.mlp_size, "columns of the MLP")):
            if num % num_ranks:
                raise BootError(f"--tensor-parallel {num_ranks}: it does not divide the model's {num} {name}")
        if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
            raise BootError(
                f"--tensor-parallel {num_ranks}: the model's {num_kv_heads} key/value heads can neither be divided "
                "among so many ranks, nor each be given to the same number of them"
            )

    @cached_property
    def own(self) -> DecoderConfig:
        """The decoder that the rank computes. Key/value heads of which there are fewer than ranks are on several."""
        whole, num = self.whole, self.num_ranks
        return replace(
            whole,
            num_heads=whole.num_heads // num,
            num_kv_heads=max(1, whole.num_kv_heads // num),
            mlp_size=whole.mlp_size // num,
            num_ranks=num,
        )

    def divides_columns(self, name: str) -> bool:
        """Whether the ranks have different columns of parameter `name`."""
        return self.num_ranks > 1 and IN_LAYER.sub("", name) in BY_COLUMNS

    def part(self, name: str) -> Part:
        """Returns what the rank has of parameter `name`; all of it in one piece, if it is the only one."""
        if self.num_ranks == 1:
            return Part((range(self._shapes[name][0]),))
        kind = IN_LAYER.sub("", name)
        if kind in BY_ROWS:
            sections = BY_ROWS[kind](self.whole)
            first_rows = accumulate((num * unit for num, unit in sections), initial=0)
            return Part(
                tuple(self._share(*section, first) for section, first in zip(sections, first_rows, strict=False))
            )
        rows = (range(self._shapes[name][0]),)
        if kind in BY_COLUMNS:
            share = self._share(BY_COLUMNS[kind](self.whole), 1, 0)
            return Part(rows, slice(share.start, share.stop))
        return Part(rows)

    def _share(self, num_units: int, unit: int, first_row: int) -> range:
        """Returns the rank's rows of a section that begins there; the last shares of a vocabulary may be smaller."""
        each = -(-num_units // self.num_ranks)
        first = self.rank * num_units // self.num_ranks if num_units < self.num_ranks else self.rank * each
        return range(first_row + first * unit, first_row + min(first + each, num_units) * unit)

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        return parameter_shapes(self.whole)
