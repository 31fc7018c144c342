"""What steps may use in addition: off until a GPU has shown that it is right and faster."""

from kernels.gpu.launch_table import find_capability, has_fixed_launches
from kernels.gpu.tuned_launches import HOPPER
from kernels.plans.decode_work import DecodeShape

FUSIONS = ("few_rows", "prefetch", "dependent", "argmax", "long_prompts", "fp8_attention", "fp8_products")
"""In steps of few rows one kernel for a product and what is around it; attention's idle programs prefetch the next
weight; kernels are launched before the previous one has ended; the head's product finds the likeliest tokens, without
logits, if no row needs more. Long prompts have a kernel of their own. Products of decode attention take the codes of an
fp8 cache, and those of linear layers the codes of fp8 weights."""

_fused = frozenset[str]()


def fuse(*names: str) -> None:
    """From now on steps of this process use these of `FUSIONS`. Call it before kernels are loaded."""
    global _fused  # noqa: PLW0603
    assert set(names) <= set(FUSIONS)
    _fused = frozenset(names)


def is_fused(name: str) -> bool:
    return name in _fused and not has_fixed_launches()


def takes_long_prompts(shape: DecodeShape) -> bool:
    """True if attention of this shape is to use the kernel of long prompts."""
    is_plain = shape.latent_rank is None and shape.kv_codes is None and shape.dtype.itemsize == 2
    return is_fused("long_prompts") and find_capability() == HOPPER and is_plain and shape.head_dim in (64, 128)


def dependent_launch() -> dict[str, bool]:
    """Returns the option of kernels that wait for the previous one themselves (programmatic dependent launch).

    Such a kernel must do so: one that never waits would let the next one start before the previous one has ended.
    """
    return {"launch_pdl": True} if is_fused("dependent") else {}
