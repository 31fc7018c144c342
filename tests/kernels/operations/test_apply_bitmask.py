import pytest
import torch

from kernels.operations.apply_bitmask import apply_bitmask, apply_bitmask_reference
from tests.kernels.bitmask_cases import make_bitmask
from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case


@pytest.mark.parametrize("device", DEVICES)
@each_case("vocab_size", [1, 31, 32, 33, 5_003])
def test_only_tokens_whose_bit_is_set_stay(vocab_size: int, device: str) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size, generator=generator)
    is_allowed = torch.rand(3, vocab_size, generator=generator) < 0.3
    is_allowed[1] = True
    expected = logits.clone()
    for row, allowed in zip([4, 0, 2], is_allowed, strict=True):
        expected[row][~allowed] = float("-inf")
    ours = logits.to(device)
    apply_bitmask(ours, torch.tensor([4, 0, 2], device=device), make_bitmask(is_allowed).to(device))
    assert torch.equal(ours.cpu(), expected)


def test_a_row_that_may_choose_nothing_has_nothing() -> None:
    logits = torch.zeros(2, 40)
    apply_bitmask(logits, torch.tensor([1]), torch.zeros(1, 2, dtype=torch.int32))
    assert logits.isfinite().all(-1).tolist() == [True, False]
    assert not logits[1].isfinite().any()


def test_bits_beyond_the_vocabulary_mean_nothing() -> None:
    logits = torch.zeros(2, 33)
    apply_bitmask(logits, torch.tensor([0]), torch.tensor([[0, -2]], dtype=torch.int32))
    assert logits.isfinite().sum(-1).tolist() == [0, 33]


def test_no_rows_change_nothing() -> None:
    logits = torch.zeros(2, 33)
    apply_bitmask(logits, torch.empty(0, dtype=torch.int64), torch.empty(0, 2, dtype=torch.int32))
    assert bool((logits == 0).all())


def test_the_reference_keeps_values_that_are_not_finite() -> None:
    logits = torch.tensor([[float("nan"), float("inf"), 1.0]])
    apply_bitmask_reference(logits, torch.tensor([0]), torch.tensor([[0b011]], dtype=torch.int32))
    assert [str(value) for value in logits[0].tolist()] == ["nan", "inf", "-inf"]
