"""Writes `block_forms.safetensors`: random blocks of every form and their values by the `gguf` package.

Run from the repository's root: python -m tests.kernels.operations.block_forms
"""

import importlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from kernels.arguments.block_forms import FORMS, GGUF_FORMS

GOLDEN = Path(__file__).with_name("block_forms.safetensors")
NUM_VALUES = 256


def random_blocks(form: str, num_rows: int, num_inputs: int, seed: int) -> Tensor:
    """Returns rows of random bytes [O, bytes of a row]; all float16 numbers of theirs are finite."""
    generator = torch.Generator().manual_seed(seed)
    shape = num_rows * num_inputs // FORMS[form].num_values, FORMS[form].num_bytes
    blocks = torch.randint(256, shape, generator=generator).to(torch.uint8)
    for first_byte in FORMS[form].halves:
        blocks[:, first_byte + 1] &= 0b10111011  # the exponent is not all ones
    return blocks.view(num_rows, -1)


def gguf_values(form: str, blocks: Tensor) -> Tensor:
    """Returns the values by the `gguf` package, float32."""
    gguf, numpy = importlib.import_module("gguf"), importlib.import_module("numpy")
    with numpy.errstate(over="ignore"):  # MXFP4 with the largest exponent
        return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[form]))


if __name__ == "__main__":
    tensors: dict[str, Tensor] = {}
    for seed, form in enumerate(GGUF_FORMS):
        tensors[form] = random_blocks(form, 2, NUM_VALUES, seed)
        tensors[f"{form} values"] = gguf_values(form, tensors[form])
    save_file(tensors, GOLDEN)
