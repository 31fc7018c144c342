"""The specializations of `draw` that are compiled in tests."""

from tests.kernels.gpu.cases.best_token import part_cases
from tests.kernels.gpu.cases.compile_case import in_float32

_CASES = part_cases("bf16", is_drawn=True, has_logits=True)
COMPILE_CASES = (*_CASES, in_float32(_CASES[0]))
