"""AWQ as its kernel "gemm" reads it: 4-bit codes, those of eight outputs in a word.

Shape legend: O outputs, I inputs, G groups of inputs, R rows, W words of a row.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.integer_codes import Groups, integer_weight
from scheduler_proc.computing.loading.quantized.stored_linear import (
    FLOATS,
    INT32,
    LinearWeight,
    StoredLinear,
    read_group_size,
)

ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The places in a word of eight neighbouring outputs."""


OLD_NAMES = {"w_bit": "bits", "q_group_size": "group_size"}


class Awq:
    """See `QuantizationMethod`."""

    endings = frozenset({"qweight", "qzeros", "scales"})

    def __init__(self, config: HfConfig, modules: Collection[str]):
        config = config.with_old_names(OLD_NAMES)
        self._bits = config.choice("bits", (4,))
        self._has_zeros = config.flag("zero_point", True)
        config.choice("version", ("gemm", "GEMM"), "gemm")
        self._group_size = read_group_size(config)

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        words_IW = linear.tensor("qweight", INT32)
        num_inputs, num_words = words_IW.shape
        num_groups = linear.num_groups(num_inputs, self._group_size)
        scale_GO = linear.scale("scales", FLOATS, (num_groups, len(ORDER) * num_words))
        zero_OG = None
        if self._has_zeros or linear.has("qzeros"):
            zero_OG = self._unpack(linear.tensor("qzeros", INT32, (num_groups, num_words)))
        groups = Groups(self._bits, scale_GO.T.contiguous(), zero_OG)
        return integer_weight(num_inputs, groups, lambda: self._unpack(words_IW))

    def _unpack(self, words_RW: Tensor) -> Tensor:
        """Returns codes of outputs, [O, R]."""
        words_WR, mask = words_RW.T.contiguous(), (1 << self._bits) - 1
        return torch.stack([(words_WR >> self._bits * place & mask).byte() for place in ORDER], dim=1).flatten(0, 1)
