"""MXFP4 of gpt-oss: the weights of all experts of a layer, in blocks of 32 inputs with a power of two.

Shape legend: X experts, O outputs of an expert, N blocks of 32 inputs, B = 16 bytes of a block.
"""

from collections.abc import Collection

import torch

from kernels.arguments.block_rows import BlockRows
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.float_codes import mxfp4_rows
from scheduler_proc.computing.loading.quantized.integer_codes import BLOCK
from scheduler_proc.computing.loading.quantized.stored_linear import LinearWeight, StoredLinear

BLOCKS, SCALES = "_blocks", "_scales"
NAN_SCALE = 255


class Mxfp4:
    """See `QuantizationMethod`. The rows of all experts are those of one matrix."""

    endings = frozenset({BLOCKS, SCALES})

    def __init__(self, config: HfConfig, modules: Collection[str]):
        """Nothing in the config matters: the names of tensors show what is quantized."""

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        scale_XON = linear.tensor(SCALES, (torch.uint8,), num_dimensions=3)
        bytes_XONB = linear.tensor(BLOCKS, (torch.uint8,), (*scale_XON.shape, BLOCK // 2))
        if bool((scale_XON == NAN_SCALE).any()):
            raise linear.error(SCALES, "holds NaN")

        def read() -> BlockRows:
            """Orders the codes of one expert at a time: those of all would need memory twice."""
            experts = zip(bytes_XONB.flatten(2), scale_XON, strict=True)
            blocks = [mxfp4_rows(bytes_OB, scale_ON) for bytes_OB, scale_ON in experts]
            return BlockRows(torch.cat([each.blocks for each in blocks]), "MXFP4", BLOCK * scale_XON.shape[2])

        return LinearWeight("MXFP4", read)
