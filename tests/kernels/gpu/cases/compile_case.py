"""What a Triton kernel is compiled for: one specialization of it, and what the compiled code must be."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MAX_SHARED_BYTES = 227 << 10
"""What a block can have on a Hopper GPU."""
MAX_ADA_BYTES = 99 << 10
"""On an Ada GPU, where the launch table's rules are in use as they are."""


@dataclass(frozen=True)
class CompileCase:
    """Each module of this package lists its cases as `COMPILE_CASES`; `compile_report` compiles and checks them.

    What a launcher chooses by the shape (blocks, warps, stages) comes from the function that the launcher calls, too.
    """

    label: str
    """The shape and the configuration, unique in its module."""
    kernel: Any
    """The function under `triton.jit`."""
    signature: Mapping[str, str]
    """The type of each parameter that is no constexpr: "*bf16:16" (address a multiple of 16), "i32:16", "i64", "fp32".

    What a kernel does not specialize (on alignment) has no ":16".
    """
    constants: Mapping[str, Any]
    max_registers: int
    """Per thread: a bound with some room for the next compiler, below the number that would cost a resident block."""
    launch: Mapping[str, int] = field(default_factory=dict)
    """More constants, and `num_warps` and `num_stages`, as the launcher passes them."""
    has_wgmma: bool = False
    max_shared_bytes: int = MAX_SHARED_BYTES
    max_spilled_bytes: int = 0
    max_fused: int = 0
    """Products fused with sums that the kernel may have although its launch has `enable_fp_fusion` off."""
    max_loop_stalls: int | None = None
    """The most instructions of `compile_report.STALLS` in its loops; `None`: not looked at, which takes less time."""


def with_codes(case: CompileCase, codes: Mapping[str, Any], **changes: Any) -> CompileCase:
    """Returns the case for a cache of fp8, of which `codes` are constants; `changes` are those of its other fields."""
    signature = dict(case.signature) | dict.fromkeys(("keys", "values"), "*fp8e4nv:16")
    constants = dict(case.constants) | codes
    kind = "products in fp8" if constants.get("IN_FP8") else "fp8 cache"
    return replace(case, label=f"{case.label}, {kind}", signature=signature, constants=constants, **changes)


def with_options(case: CompileCase, max_registers: int, **options: Any) -> CompileCase:
    """Returns the case for attention with these constants of its options."""
    label, constants = f"{case.label}, {', '.join(options)}", dict(case.constants) | options
    return replace(case, label=label, constants=constants, max_registers=max_registers)


def in_float32(case: CompileCase, **changes: Any) -> CompileCase:
    """Returns the case for tensors of float32 in place of bfloat16; `changes` are those of its other fields."""
    signature = {name: kind.replace("bf16", "fp32") for name, kind in case.signature.items()}
    return replace(case, label=f"{case.label}, float32", signature=signature, **changes)
