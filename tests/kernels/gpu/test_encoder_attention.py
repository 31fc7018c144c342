from collections import Counter

import pytest
import torch

from tests.kernels.cases import assert_close
from tests.kernels.encoder_cases import LENS, NUM_SINGLE, SHAPES, EncoderShape, expected, make_heads, run


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_dense_attention(shape: EncoderShape, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    heads, bias = make_heads(shape, dtype, device)
    out = run(heads, bias, shape, NUM_SINGLE, LENS)
    assert_close(out, expected(heads.cpu(), None if bias is None else bias.cpu(), shape).to(device), dtype)
    assert backend["encoder_attention"] == 1
