"""The Triton kernels as tests use them: compiled on a CUDA device if there is one, or else interpreted on the CPU."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernels.gpu import triton_kernels
from kernels.gpu.fusions import fuse
from kernels.gpu.launch_table import fix_launches
from tests.kernels.cases import DEVICES

DEVICE = DEVICES[-1]


@contextmanager
def triton_in_use(*, is_fixed: bool = False, fusions: Sequence[str] = ()) -> Iterator[Counter[str]]:
    """Operations use the Triton kernels for tensors on `DEVICE`; counts the calls of each operation's kernel.

    `is_fixed`: as with `--deterministic`. `fusions`: see `kernels/gpu/fusions.py`.

    Skips the test without Triton, or if Triton does not fit the device.
    """
    triton = pytest.importorskip("triton", reason="needs triton")
    is_interpreted = triton.knobs.runtime.interpret
    if is_interpreted != (DEVICE == "cpu"):
        pytest.skip(f"torch computes on {DEVICE}, and TRITON_INTERPRET is {int(is_interpreted)}")
    if is_interpreted:
        pytest.importorskip("tests.kernels.gpu.interpreter_rows").make_rows_independent()
        pytest.importorskip("tests.kernels.gpu.interpreter_bf16").make_bf16_right()
        pytest.importorskip("tests.kernels.gpu.interpreter_tf32").make_tf32_right()
        pytest.importorskip("tests.kernels.gpu.interpreter_patches").make_faster()
    fix_launches(is_fixed)
    fuse(*fusions)
    triton_kernels.load_triton_kernels(DEVICE)
    taken: Counter[str] = Counter()
    for name, found in list(triton_kernels._loaded.items()):
        triton_kernels._loaded[name] = _counted(name, found, taken)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            # Masked values may overflow or be NaN, as on a GPU; loops to a loaded bound make numpy complain.
            warnings.filterwarnings("ignore", "Conversion of an array with ndim > 0", DeprecationWarning)
            yield taken
    finally:
        triton_kernels._loaded.clear()
        fix_launches(False)
        fuse()


def _counted(name: str, found: triton_kernels.TritonKernel, taken: Counter[str]) -> triton_kernels.TritonKernel:
    def call(*arguments: Any, **named: Any) -> Any:
        taken[name] += 1
        return found(*arguments, **named)

    return call
