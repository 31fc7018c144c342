import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.operations.top_logprobs import top_logprobs
from tests.kernels.cases import DEVICES
from tests.kernels.each_case import each_case


def expected_top(logits: Tensor, num_top: int) -> list[list[int]]:
    """Returns the ids by falling logprob, of equal ones by rising id."""
    logprobs = logits.float().log_softmax(-1).tolist()
    return [sorted(range(len(row)), key=lambda token, row=row: (-row[token], token))[:num_top] for row in logprobs]


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("vocab_size", [20, 64, 300, 5003])
@each_case("num_top", [0, 1, 2, 20])
def test_logprobs_are_those_of_log_softmax(num_top: int, vocab_size: int, dtype: torch.dtype, device: str) -> None:
    logits = (torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(1)) * 4).to(device, dtype)
    ids = torch.tensor([0, vocab_size - 1, 3, -1, 9], dtype=torch.int32, device=device)
    chosen, top_ids, top = top_logprobs(logits, ids, num_top)
    logprobs = logits.double().log_softmax(-1)
    assert chosen.dtype == top.dtype == torch.float32
    assert top_ids.dtype == torch.int32
    assert bool(chosen[3].isnan())
    rows = torch.tensor([0, 1, 2, 4], device=device)
    torch.testing.assert_close(chosen[rows].double(), logprobs[rows, ids[rows].long()], rtol=0, atol=1e-5)
    assert top_ids.tolist() == expected_top(logits, num_top)
    torch.testing.assert_close(top.double(), logprobs.gather(1, top_ids.long()), rtol=0, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.integers(1, 400),
    num_values=st.integers(1, 12),
    num_top=st.integers(0, 20),
    seed=st.integers(0, 1 << 30),
)
def test_of_equal_tokens_the_smaller_ids_come_first(vocab_size: int, num_values: int, num_top: int, seed: int) -> None:
    """Few values over many tokens: most are equal to others, within a block and across blocks; some are banned."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_values, generator=generator)
    values[0] = 0.0 if num_values < 3 else float("-inf")
    logits = values[torch.randint(0, num_values, (3, vocab_size), generator=generator)]
    logits[:, vocab_size // 2] = 1.0
    num_top = min(num_top, vocab_size)
    assert top_logprobs(logits, torch.zeros(3), num_top)[1].tolist() == expected_top(logits, num_top)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("num_top", [1, 20])
def test_a_row_that_is_not_finite_leaves_the_others_alone(num_top: int, bad: float, device: str) -> None:
    logits = torch.randn(3, 200, device=device)
    ids = torch.tensor([4, 5, 6], device=device)
    before = [column.tolist() for column in top_logprobs(logits, ids, num_top)]
    logits[1, 100] = bad
    after = [column.tolist() for column in top_logprobs(logits, ids, num_top)]
    assert after[0][1] != after[0][1]
    assert all(0 <= token < 200 for token in after[1][1])
    assert [[column[0], column[2]] for column in after] == [[column[0], column[2]] for column in before]


def test_a_sure_token_has_no_positive_logprob() -> None:
    logits = torch.full((1, 50_000), -30.0)
    logits[0, 8] = 101.3
    chosen, _, top = top_logprobs(logits, torch.tensor([8]), 5)
    assert chosen.tolist() == [0.0]
    assert float(top.max()) == 0.0


def test_no_rows() -> None:
    chosen, top_ids, top = top_logprobs(torch.empty(0, 100), torch.empty(0, dtype=torch.int32), 5)
    assert (chosen.shape, top_ids.shape, top.shape) == ((0,), (0, 5), (0, 5))
