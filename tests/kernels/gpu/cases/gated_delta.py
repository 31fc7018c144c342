"""The specializations of `gated_delta` that are compiled in tests."""

from kernels.gpu.state_matrices import StateForm
from tests.kernels.gpu.cases.state_matrices import cases_of, chunks_in_float32

_CASES = cases_of("Qwen3-Next", StateForm(32, 16, 128, 128, 0, 2048, 4096, has_delta=True))
COMPILE_CASES = _CASES + chunks_in_float32(_CASES)
