import pytest
import torch
from torch import Tensor
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from kernels.operations.gated_norm import gated_norm
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 1e-2


def make_inputs(size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """Returns values, and a gate whose rows lie apart."""
    gate = torch.randn(5, size + 9).to(device, dtype)[:, 4 : size + 4]
    return torch.randn(5, size).to(device, dtype), gate


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case(("num_groups", "group_size"), [(1, 1), (3, 7), (4, 128), (2, 80), (5, 33)])
def test_norms_first_equals_transformers(num_groups: int, group_size: int, dtype: torch.dtype, device: str) -> None:
    values, gate = make_inputs(num_groups * group_size, dtype, device)
    norm = Qwen3NextRMSNormGated(group_size, EPS).to(device)
    norm.weight.data = torch.randn(group_size).to(device, dtype).float()
    groups = (part.float().unflatten(1, (num_groups, group_size)) for part in (values, gate))
    expected = norm(*groups).detach().flatten(1)
    weight = norm.weight.detach().to(dtype)
    assert gated_norm(values, gate, weight, EPS, group_size, norms_first=True) is values
    assert_close(values, expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case(("num_groups", "group_size"), [(1, 1), (3, 7), (1, 768), (2, 80), (8, 33)])
def test_gates_first_equals_transformers(num_groups: int, group_size: int, dtype: torch.dtype, device: str) -> None:
    values, gate = make_inputs(num_groups * group_size, dtype, device)
    norm = MambaRMSNormGated(num_groups * group_size, group_size, EPS).to(device)
    norm.weight.data = torch.randn(num_groups * group_size).to(device, dtype).float()
    expected, weight = norm(values.float(), gate.float()).detach(), norm.weight.detach().to(dtype)
    assert gated_norm(values, gate, weight, EPS, group_size, norms_first=False) is values
    assert_close(values, expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", DTYPES)
@each_case("norms_first", [True, False])
def test_without_a_weight_there_is_only_the_gate(norms_first: bool, dtype: torch.dtype, device: str) -> None:
    values, gate = make_inputs(67, dtype, device)
    expected = values.double() * gate.double() * gate.double().sigmoid()
    assert gated_norm(values, gate, None, EPS, 67, norms_first=norms_first) is values
    assert_close(values, expected, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("norms_first", [True, False])
def test_values_may_lie_apart(norms_first: bool, device: str) -> None:
    values, gate = make_inputs(64, torch.float32, device)
    whole, weight = torch.randn(5, 80).to(device), torch.randn(32).to(device)
    whole[:, 8:72] = values
    before = whole.clone()
    gated_norm(whole[:, 8:72], gate, weight, EPS, 32, norms_first=norms_first)
    assert_close(whole[:, 8:72], gated_norm(values, gate, weight, EPS, 32, norms_first=norms_first), torch.float32)
    for columns in (slice(8), slice(72, None)):
        assert torch.equal(whole[:, columns], before[:, columns])


def test_large_gates_stay_finite() -> None:
    values, gate = make_inputs(64, torch.float32, "cpu")
    for norms_first in (True, False):
        out = gated_norm(values.clone(), gate * 1e4, torch.ones(64), EPS, 64, norms_first=norms_first)
        assert bool(out.isfinite().all())


def test_refuses_sizes_that_do_not_fit() -> None:
    values, gate = make_inputs(64, torch.float32, "cpu")
    for size, group_size in ((64, 33), (16, 32), (65, 64)):
        with pytest.raises(AssertionError):
            gated_norm(values, gate, torch.ones(size), EPS, group_size, norms_first=True)
