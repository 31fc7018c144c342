import pytest
import torch

from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case
from tests.kernels.take_tokens_cases import CASES, check


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.int32, torch.int64])
@each_case("case", range(len(CASES)))
def test_rows_with_a_source_get_its_token(case: int, dtype: torch.dtype, device: str) -> None:
    check(case, dtype, device)
