"""The specializations of `sample` that are compiled in tests."""

from tests.kernels.gpu.cases.best_token import part_cases

COMPILE_CASES = part_cases("fp32", is_drawn=True, has_logits=False)
