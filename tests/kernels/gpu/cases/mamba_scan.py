"""The specializations of `mamba_scan` that are compiled in tests."""

from kernels.gpu.state_matrices import StateForm
from tests.kernels.gpu.cases.state_matrices import cases_of, chunks_in_float32

_TINY = cases_of("Granite-4.0-H-Tiny", StateForm(48, 1, 128, 64, 3200, 3072, 0, has_delta=False))
COMPILE_CASES = (
    *_TINY,
    *cases_of("Falcon-H1-1.5B", StateForm(48, 1, 256, 64, 3328, 3072, 0, has_delta=False)),
    *cases_of("Nemotron-H-8B", StateForm(128, 8, 128, 64, 9216, 8192, 0, has_delta=False)),
    *chunks_in_float32(_TINY),
)
