"""The specializations of `greedy` that are compiled in tests."""

from tests.kernels.gpu.cases.best_token import part_cases, row_cases
from tests.kernels.gpu.cases.compile_case import in_float32

_CASES = part_cases("bf16", is_drawn=False, has_logits=True)
COMPILE_CASES = (*_CASES, in_float32(_CASES[0]), *row_cases())
