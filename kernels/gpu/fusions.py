"""What steps may use in addition: off until a GPU has shown that it is right and faster."""

from kernels.gpu.launch_table import has_fixed_launches

FUSIONS = ("few_rows", "prefetch", "dependent", "fp8_attention", "fp8_products")
"""One kernel for a product of few rows and what is around it; attention's idle programs prefetch the next weight;
kernels are launched before the previous one has ended; products of decode attention take the codes of an fp8 cache, and
those of linear layers the codes of fp8 weights."""

_fused = frozenset[str]()


def fuse(*names: str) -> None:
    """From now on steps of this process use these of `FUSIONS`. Call it before kernels are loaded."""
    global _fused  # noqa: PLW0603
    assert set(names) <= set(FUSIONS)
    _fused = frozenset(names)


def is_fused(name: str) -> bool:
    return name in _fused and not has_fixed_launches()


def dependent_launch() -> dict[str, bool]:
    """Returns the option of kernels that wait for the previous one themselves (programmatic dependent launch).

    Such a kernel must do so: one that never waits would let the next one start before the previous one has ended.
    """
    return {"launch_pdl": True} if is_fused("dependent") else {}
