"""Launch parameters that were measured, or found in the compile report, for some shapes on GPUs of one kind.

The rules alone (`launch_table.py`) must fit an Ada GPU, which has less than half of Hopper's shared memory.
"""

from collections.abc import Mapping
from typing import Any

Launch = Mapping[str, int]
"""Constexpr parameters of a kernel by name, `num_warps`, `num_stages` and further options of its compiler."""

HOPPER = 90
"""The compute capability of H100 and H200; without a GPU the kernels are compiled for it."""

_HEADS_OF_128 = ((2, 128), (4, 128), (5, 128))
_LATENTS_OF_512, _LATENTS_OF_256 = ((20, 512, 64), (64, 512, 64), (128, 512, 64)), ((40, 256, 32), (32, 256, 64))
TUNED: dict[tuple[Any, ...], Launch] = {
    (HOPPER, "decode_work", 1, 64, 1): {"merges": 1},
    (HOPPER, "decode_work", 1, 64, 2): {"merges": 1},
    **{
        (HOPPER, "decode_work", *heads, size): {"programs": 2, "merges": 1}
        for heads in _HEADS_OF_128
        for size in (1, 2)
    },
    **{(HOPPER, "paged_decode", *heads, 1): {"BLOCK_N": 128, "num_stages": 2} for heads in _HEADS_OF_128},
    **{(HOPPER, "paged_decode", *heads, 2): {"num_warps": 2} for heads in _HEADS_OF_128},
    **{
        (HOPPER, "paged_prefill", *heads, size): {"BLOCK_M": 128, "num_warps": 8}
        for heads in ((1, 64), *_HEADS_OF_128)
        for size in (1, 2, 4)
        if heads == (1, 64) or size != 2
    },
    **{(HOPPER, "paged_prefill", *heads, 2): {"num_stages": 2} for heads in _HEADS_OF_128},
    # A block of latents is loaded while another is multiplied.
    **{
        (HOPPER, kernel, *heads, 2): {"num_stages": 5}
        for kernel, heads in (
            *(("latent_prefill", heads) for heads in ((16, 512, 64), *_LATENTS_OF_512)),
            *(("latent_decode", heads) for heads in (*_LATENTS_OF_512, *_LATENTS_OF_256)),
        )
    },
    **{(HOPPER, "latent_prefill", *heads, 2): {"BLOCK_M": 64, "BLOCK_N": 64} for heads in _LATENTS_OF_256},
}
"""By (compute capability, kernel, *shape). The lines of `_HEADS_OF_128` with 16 bits, and for decode with an fp8 cache,
were measured on an H100 and an H200 (`benchmarks/results/gpu*.json`); the others come from the compile report."""
