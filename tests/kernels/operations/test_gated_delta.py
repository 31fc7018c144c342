"""Shape legend: T tokens, H value heads, G key heads, D key size, V value size."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.operations.gated_delta import gated_delta
from tests.kernels.cases import DEVICES, assert_close
from tests.kernels.each_case import each_case
from tests.kernels.state_cases import (
    CHAIN,
    NUM_TOKENS,
    assert_states,
    chained_rows,
    expect_rows,
    make_decay,
    make_states,
    mixed_rows,
    one_row,
)

SHAPES = [(2, 2, 128, 128), (4, 2, 64, 32), (3, 1, 5, 96), (2, 1, 136, 64), (1, 1, 1, 32), (6, 3, 24, 20)]
"""Value heads, key heads, key size, value size."""

Inputs = tuple[Tensor, Tensor, StateDecay]


def make_inputs(shape: tuple[int, int, int, int], num_tokens: int, dtype: torch.dtype, device: str) -> Inputs:
    """Returns queries, keys and values, and gates, as parts of one tensor, and the decay."""
    num_heads, num_key_heads, key_size, value_size = shape
    sizes = 2 * num_key_heads * key_size + num_heads * value_size, 2 * num_heads
    qkv, gates = torch.randn(num_tokens, sum(sizes)).to(device, dtype).split(sizes, 1)
    return qkv, gates, make_decay(num_heads, device)


def expect(shape: tuple[int, int, int, int], inputs: Inputs, states: Tensor, rows: StateRows) -> tuple[Tensor, Tensor]:
    """What transformers computes."""
    num_heads, num_key_heads, key_size, value_size = shape
    qkv, gates, decay = inputs
    beta, time = gates.float().chunk(2, 1)
    query, key, value = qkv.float().split((num_key_heads * key_size,) * 2 + (num_heads * value_size,), 1)
    log_decay = decay.rates * functional.softplus(time + decay.biases)

    def compute(state: Tensor | None, tokens: slice) -> tuple[Tensor, Tensor]:
        query_TGD, key_TGD = (part[tokens].unflatten(1, (num_key_heads, key_size)) for part in (query, key))
        rule = torch_chunk_gated_delta_rule if tokens.stop - tokens.start > 1 else torch_recurrent_gated_delta_rule
        out, after = rule(
            *(part[None] for part in (query_TGD, key_TGD, value[tokens].unflatten(1, (num_heads, value_size)))),
            g=log_decay[tokens][None],
            beta=beta[tokens].sigmoid()[None],
            initial_state=None if state is None else state[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
        assert after is not None
        return out[0].flatten(1), after[0]

    return expect_rows(rows, states, compute)


@pytest.mark.parametrize("device", DEVICES)
@each_case("dtype", [torch.float32, torch.bfloat16, torch.float16])
@each_case("shape", SHAPES)
def test_equals_transformers(shape: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> None:
    inputs = make_inputs(shape, NUM_TOKENS, dtype, device)
    matrices, rows = make_states((shape[0], *shape[2:]), torch.float32, device), mixed_rows(device)
    expected, expected_matrices = expect(shape, inputs, matrices, rows)
    assert_close(gated_delta(*inputs, matrices, rows), expected, dtype)
    assert_states(matrices, expected_matrices)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_of_many_tokens_equals_transformers(device: str) -> None:
    shape = SHAPES[0]
    inputs, rows = make_inputs(shape, 300, torch.float32, device), one_row(300, 2, {15: 4, 255: 5, 299: 2}, device)
    matrices = make_states((shape[0], *shape[2:]), torch.float32, device)
    expected, expected_matrices = expect(shape, inputs, matrices, rows)
    assert_close(gated_delta(*inputs, matrices, rows), expected, torch.float32)
    assert_states(matrices, expected_matrices)


@each_case("shape", [*SHAPES[:3], (2, 1, 33, 256)])
def test_a_row_has_the_same_bits_wherever_it_is_cut(shape: tuple[int, int, int, int], backend: str) -> None:
    """In chunks, with stored states, and token by token; to the last bit where no compiler chooses what it rounds."""
    num_tokens, tolerance = 40, 1e-6 if backend in ("torch", "portable") else 0.0

    def assert_same(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)

    qkv, gates, decay = make_inputs(shape, num_tokens, torch.float32, "cpu")
    matrices = make_states((shape[0], *shape[2:]), torch.float32, "cpu")
    whole, stored = matrices.clone(), matrices.clone()
    expected = gated_delta(qkv, gates, decay, whole, one_row(num_tokens, 0, {num_tokens - 1: 0}, "cpu"))
    slots = {3: 4, 4: 5, 22: 6, num_tokens - 1: 0}
    assert_same(gated_delta(qkv, gates, decay, stored, one_row(num_tokens, 0, slots, "cpu")), expected)
    assert_same(stored[0], whole[0])
    for most in (1, 7):
        parts, outputs = matrices.clone(), []
        for chunk, chunk_gates in zip(qkv.split(most), gates.split(most), strict=True):
            rows = one_row(len(chunk), 0, {len(chunk) - 1: 0}, "cpu")
            outputs.append(gated_delta(chunk, chunk_gates, decay, parts, rows))
        assert_same(torch.cat(outputs), expected)
        assert_same(parts[0], whole[0])


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_a_decode_row_may_continue_from_an_earlier_one(shape: tuple[int, int, int, int]) -> None:
    inputs = make_inputs(shape, CHAIN, torch.float32, "cpu")
    matrices, rows = make_states((shape[0], *shape[2:]), torch.float32, "cpu"), chained_rows()
    together, slots = matrices.clone(), {0: 3, 1: 5, 2: 4, 3: 1}
    expected = gated_delta(*inputs, together, one_row(CHAIN, 0, slots, "cpu"))
    assert_close(gated_delta(*inputs, matrices, rows), expected, torch.float32)
    assert_states(matrices, together)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(4, 2, 64, 32), (6, 3, 24, 20)], ids=str)
def test_tiled_heads_are_the_heads_in_another_order(shape: tuple[int, int, int, int], device: str) -> None:
    num_heads, num_key_heads, key_size, value_size = shape
    (qkv, gates, decay), rows = make_inputs(shape, NUM_TOKENS, torch.float32, device), mixed_rows(device)
    matrices = make_states((num_heads, key_size, value_size), torch.float32, device)
    order = torch.arange(num_heads, device=device).view(num_key_heads, -1).T.flatten()
    heads, values = qkv.split((2 * num_key_heads * key_size, num_heads * value_size), 1)
    tiled = torch.cat((heads, values.unflatten(1, (num_heads, -1))[:, order].flatten(1)), 1)
    tiled_gates = gates.unflatten(1, (2, num_heads))[:, :, order].flatten(1)
    tiled_decay, tiled_matrices = StateDecay(decay.rates[order], decay.biases[order]), matrices[:, order].clone()
    out = gated_delta(tiled, tiled_gates, tiled_decay, tiled_matrices, rows, has_tiled_heads=True)
    expected = gated_delta(qkv, gates, decay, matrices, rows)
    assert_close(out, expected.unflatten(1, (num_heads, -1))[:, order].flatten(1), torch.float32)
    assert_states(tiled_matrices, matrices[:, order])


@pytest.mark.parametrize("device", DEVICES)
def test_writes_to_the_provided_tensor(device: str) -> None:
    inputs, rows = make_inputs(SHAPES[1], NUM_TOKENS, torch.float32, device), mixed_rows(device)
    matrices = make_states((4, 64, 32), torch.float32, device)
    expected, out = gated_delta(*inputs, matrices.clone(), rows), torch.full((NUM_TOKENS, 128), float("nan")).to(device)
    assert gated_delta(*inputs, matrices, rows, out_TN=out) is out
    assert torch.equal(out, expected)


def test_no_tokens_store_nothing() -> None:
    matrices, inputs = make_states((4, 64, 32), torch.float32, "cpu"), make_inputs(SHAPES[1], 0, torch.float32, "cpu")
    assert gated_delta(*inputs, matrices, one_row(0, 0, {}, "cpu")).shape == (0, 128)


def test_a_long_row_of_large_gates_stays_finite() -> None:
    qkv, gates, decay = make_inputs(SHAPES[1], 50, torch.float32, "cpu")
    rows, matrices = one_row(50, -1, {49: 0}, "cpu"), make_states((4, 64, 32), torch.float32, "cpu")
    out = gated_delta(qkv * 1e4, gates * 100, decay, matrices, rows)
    assert bool(out.isfinite().all())
    assert bool(matrices[0].isfinite().all())


def test_refuses_sizes_that_do_not_fit() -> None:
    inputs, rows = make_inputs(SHAPES[1], NUM_TOKENS, torch.float32, "cpu"), mixed_rows("cpu")
    for shape in ((4, 64, 31), (3, 64, 32), (4, 48, 32), (4, 256, 32)):
        with pytest.raises(AssertionError):
            gated_delta(*inputs, make_states(shape, torch.float32, "cpu"), rows)
    with pytest.raises(AssertionError):
        gated_delta(*inputs, make_states((4, 64, 32), torch.bfloat16, "cpu"), rows)
