"""The Triton forms as tests use them: compiled on a CUDA device where there is one, else interpreted on the CPU."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from kernels.gpu import forms
from tests.kernels.cases import DEVICES

DEVICE = DEVICES[-1]


@contextmanager
def forms_in_use() -> Iterator[Counter[str]]:
    """Launchers take the Triton forms for tensors on `DEVICE`; counts, by operation, how often one was taken.

    Skips the test where there is no Triton, or none that fits the device.
    """
    triton = pytest.importorskip("triton", reason="needs triton")
    is_interpreted = triton.knobs.runtime.interpret
    if is_interpreted != (DEVICE == "cpu"):
        pytest.skip(f"torch computes on {DEVICE}, and TRITON_INTERPRET is {int(is_interpreted)}")
    if is_interpreted:
        pytest.importorskip("tests.kernels.gpu.interpreter_bf16").make_bf16_right()
    forms.load_forms(DEVICE)
    taken: Counter[str] = Counter()
    for name, found in list(forms._forms.items()):
        forms._forms[name] = _counted(name, found, taken)
    try:
        # What is masked may overflow or be NaN, as on a GPU.
        with np.errstate(all="ignore"):
            yield taken
    finally:
        forms.unload_forms()


def _counted(name: str, found: forms.Form, taken: Counter[str]) -> forms.Form:
    def call(*arguments: Any, **named: Any) -> Any:
        taken[name] += 1
        return found(*arguments, **named)

    return call
