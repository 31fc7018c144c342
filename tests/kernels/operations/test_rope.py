import cmath

import pytest
import torch

from kernels.arguments.rows import RopeTables
from kernels.operations.rope import rope
from tests.kernels.cases import DEVICES, assert_close


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [2, 8, 80])
def test_turns_each_pair_by_its_angle(dtype: torch.dtype, head_dim: int, device: str) -> None:
    half = head_dim // 2
    angles = torch.rand(30, half) * 6
    positions = torch.tensor([29, 0, 3, 3], dtype=torch.int32)
    query, key = torch.randn(4, 6, head_dim).to(dtype), torch.randn(4, 2, head_dim).to(dtype)
    expected = []
    for heads in (query, key):
        pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double())
        turned = pairs * torch.exp(1j * angles[positions.long()].double())[:, None]
        expected.append(torch.cat((turned.real, turned.imag), dim=-1))
    query, key = query.to(device), key.to(device)
    rope(query, key, RopeTables(angles.cos().to(device), angles.sin().to(device)), positions.to(device))
    assert_close(query.cpu(), expected[0], dtype)
    assert_close(key.cpu(), expected[1], dtype)


def test_works_in_place_on_views_of_a_merged_projection() -> None:
    merged = torch.ones(1, 4, 2)
    query, key, value = merged.split((2, 1, 1), dim=1)
    angle = 0.5
    table = torch.tensor([[angle]])
    rope(query, key, RopeTables(table.cos(), table.sin()), torch.zeros(1, dtype=torch.int32))
    turned = complex(1, 1) * cmath.exp(1j * angle)
    assert torch.allclose(merged[0, :3], torch.tensor([turned.real, turned.imag]))
    assert torch.equal(value, torch.ones(1, 1, 2))
