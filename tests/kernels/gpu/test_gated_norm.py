from collections import Counter

import pytest
import torch

from kernels.operations.gated_norm import gated_norm, gated_norm_reference
from tests.kernels.cases import assert_close

EPS = 1e-2


@pytest.mark.parametrize(
    ("num_groups", "group_size", "weights", "norms_first", "dtype"),
    [
        (5, 128, "one", True, torch.float32),
        (3, 7, "one", True, torch.bfloat16),
        (2, 80, "all", True, torch.float16),
        (1, 1100, "all", False, torch.float32),
        (3, 33, "all", False, torch.bfloat16),
        (9, 16, "one", False, torch.float16),
        (1, 67, "none", True, torch.float32),
        (2, 64, "none", False, torch.bfloat16),
    ],
)
def test_equals_its_reference(
    num_groups: int,
    group_size: int,
    weights: str,
    norms_first: bool,
    dtype: torch.dtype,
    device: str,
    backend: Counter[str],
) -> None:
    """Rows of values and of the gate lie apart."""
    size = num_groups * group_size
    values, gate = torch.randn(2, 3, size + 9).to(device, dtype).unbind()
    weight = {"one": torch.randn(group_size), "all": torch.randn(size), "none": None}[weights]
    weight = None if weight is None else weight.to(device, dtype)
    before, expected = values.clone(), values[:, 4:-5].clone()
    gated_norm_reference(expected, gate[:, 2:-7], weight, EPS, group_size, norms_first)
    gated_norm(values[:, 4:-5], gate[:, 2:-7], weight, EPS, group_size, norms_first=norms_first)
    assert backend["gated_norm"] == 1
    assert_close(values[:, 4:-5], expected, dtype)
    for columns in (slice(4), slice(-5, None)):
        assert torch.equal(values[:, columns], before[:, columns])


def test_no_tokens_and_large_gates(device: str) -> None:
    nothing = torch.empty(0, 8, device=device)
    assert gated_norm(nothing, nothing, None, EPS, 8, norms_first=True).shape == (0, 8)
    values, gate = torch.full((1, 2), 3.0, device=device), torch.tensor([[-1e4, 1e4]], device=device)
    assert gated_norm(values, gate, None, EPS, 2, norms_first=True).tolist() == [[0.0, 3e4]]
