"""Products of few rows, with the work before and after them, compared with the parts that they replace."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.few_rows import AddTo, Best, Epilogue, Gate, GateKind, PlainMatrix, RowNorm, StoreHeads
from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.gpu.few_rows_linear import MAX_PARTS, find_part_blocks, make_counters
from kernels.gpu.fusions import FUSIONS, fuse
from kernels.gpu.launch_table import find_launch
from kernels.operations.few_rows_linear import few_rows_linear, few_rows_linear_reference
from kernels.operations.paged_decode import paged_decode
from kernels.operations.sample import NO_TOKEN, greedy_reference
from kernels.plans.decode_work import DecodeLayout, DecodeWork, make_decode_scratch, plan_decode_work
from tests.kernels.cases import assert_close

FLOATS = [torch.float32, torch.bfloat16]
MANY_TILES = 256
"""Programs for all processors, so that inputs are not cut."""
NUM_INPUTS = 300
"""Three blocks of inputs in bfloat16, of which each is a part here, and the last is not whole."""


def make_product(
    num_outputs: int, has_bias: bool, dtype: torch.dtype, device: str, num_tokens: int = 3
) -> list[Tensor]:
    """Returns x, a weight, a bias and a norm's weight."""
    generator = torch.Generator().manual_seed(num_outputs)
    shapes = (num_tokens, NUM_INPUTS), (num_outputs, NUM_INPUTS), (num_outputs,), (NUM_INPUTS,)
    x, weight, bias, norm = (torch.randn(shape, generator=generator).to(dtype).to(device) for shape in shapes)
    return [x, weight / 16, bias if has_bias else bias.zero_(), norm]


def compare(
    product: list[Tensor],
    has_bias: bool,
    has_norm: bool,
    then: Epilogue,
    expected_then: Epilogue,
    backend: Counter[str],
) -> None:
    x, weight, bias, norm = product
    matrix = PlainMatrix(weight, bias if has_bias else None)
    row_norm = RowNorm(norm, 1e-3) if has_norm else None
    expected = few_rows_linear_reference(x, matrix, row_norm, expected_then)
    found = few_rows_linear(x, matrix, row_norm, then)
    assert backend["few_rows_linear"] == 1
    assert_close(found, expected.double(), x.dtype)
    assert not bool(make_counters(x.device).any()), "the next launch would add too early"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("has_norm", "has_bias", "num_tokens"), [(False, False, 1), (False, True, 8), (True, False, 5)]
)
def test_added_to_the_stream(
    has_norm: bool, has_bias: bool, num_tokens: int, dtype: torch.dtype, device: str, backend: Counter[str]
) -> None:
    """Outputs that are no whole tiles."""
    product = make_product(150, has_bias, dtype, device, num_tokens)
    stream = torch.randn(num_tokens, 150, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
    compare(product, has_bias, has_norm, AddTo(stream.clone()), AddTo(stream.clone()), backend)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kind", "size"), [("silu", 100), ("tanh", 7), ("exact", 64)])
def test_gated(kind: GateKind, size: int, dtype: torch.dtype, device: str, backend: Counter[str]) -> None:
    product = make_product(2 * size, size == 7, dtype, device)
    then = Gate(kind)
    compare(product, size == 7, size != 64, then, then, backend)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("num_outputs", "num_tokens"), [(300, 5), (64 * MANY_TILES, 2)])
def test_the_likeliest_token(num_outputs: int, num_tokens: int, dtype: torch.dtype, device: str) -> None:
    """It is that of the logits of the same product: of equal ones, in a tile or in two, the first. Logits that are not
    finite give none. Parts of inputs and whole ones."""
    x, weight, _, _ = make_product(num_outputs, False, dtype, device, num_tokens)
    weight[[7, 9, 290]] = x[0] / 8
    x[1, 0] = 0.0 if num_outputs == 300 else float("inf")
    matrix = PlainMatrix(weight, None)
    logits = few_rows_linear(x, matrix, None, AddTo(x.new_zeros(num_tokens, num_outputs)))
    found = few_rows_linear(x, matrix, None, Best())
    assert found.dtype == torch.int32
    assert found.tolist() == greedy_reference(logits).tolist()
    assert found[0] == 7
    assert (found[1] == NO_TOKEN) == (num_outputs != 300)


@pytest.mark.parametrize(
    ("dtype", "codes", "has_norms"),
    [(torch.float32, None, True), (torch.bfloat16, None, False), (torch.float32, torch.float8_e4m3fn, True)],
)
def test_heads(
    dtype: torch.dtype, codes: torch.dtype | None, has_norms: bool, device: str, backend: Counter[str]
) -> None:
    """Queries, keys and values of tokens with a slot and without."""
    num_heads, num_kv_heads, head_dim, num_slots = 2, 1, 64, 12
    product = make_product((num_heads + 2 * num_kv_heads) * head_dim, not has_norms, dtype, device, 4)
    generator = torch.Generator().manual_seed(3)
    angles = (torch.rand(40, head_dim // 2, generator=generator) * 6).to(device)
    weights = torch.randn(2, head_dim, generator=generator).to(dtype).to(device)
    positions = torch.tensor([9, 0, 7, 3], dtype=torch.int32, device=device)
    slots = torch.tensor([11, -1, 0, 5], device=device)
    used = slots[slots >= 0]

    def make() -> StoreHeads:
        kv = torch.zeros(2, num_slots, num_kv_heads, head_dim, dtype=codes or dtype, device=device)
        scales = torch.zeros(2, num_slots, num_kv_heads, dtype=SCALE_DTYPE, device=device)
        cache = PagedKV(kv[0], kv[1], 4, *(scales if codes else ()))
        norms = HeadNorms(weights[0], weights[1], 1e-2) if has_norms else None
        return StoreHeads(cache, RopeTables(angles.cos(), angles.sin(), 20), positions, slots, norms)

    mine, theirs = make(), make()
    compare(product, not has_norms, True, mine, theirs, backend)
    for found, expected in ((mine.cache.keys, theirs.cache.keys), (mine.cache.values, theirs.cache.values)):
        if codes is None:
            assert_close(found, expected.double(), dtype)
        else:  # a sum that is rounded otherwise may have the next code
            assert float((found.float() - expected.float()).norm() / expected.float().norm()) < 0.01
        assert bool((found.float() != 0).any(2).any(1)[used].all())
    if mine.cache.key_scales is not None and theirs.cache.key_scales is not None:
        assert_close(mine.cache.key_scales, theirs.cache.key_scales.double(), SCALE_DTYPE)


class Chain:
    """Layers of attention and an MLP over a cache that all of them share, so that each overwrites what the last has
    read: a kernel that starts too early reads the wrong values."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int, sizes: tuple[int, int], device: str):
        num_rows, page_size, num_keys = 3, 16, [40, 1, 200] if device == "cuda" else [20, 1, 33]
        hidden_size, inner_size = sizes
        generator = torch.Generator(device).manual_seed(1)

        def make(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device).bfloat16()

        heads = (num_heads + 2 * num_kv_heads) * head_dim, hidden_size
        shapes = heads, (hidden_size, num_heads * head_dim), (2 * inner_size, hidden_size), (hidden_size, inner_size)
        self.matrices = [PlainMatrix(make(*shape) / shape[1] ** 0.5, None) for shape in shapes]
        self.norm = RowNorm(make(hidden_size), 1e-5)
        num_slots = num_rows * 16 * page_size
        self.cache = PagedKV(
            make(num_slots, num_kv_heads, head_dim), make(num_slots, num_kv_heads, head_dim), page_size
        )
        tables = torch.arange(num_rows * 16, dtype=torch.int32).view(num_rows, 16)
        layout = DecodeLayout(num_rows, num_heads, num_kv_heads, 64, shares_prefixes=False, merges_in_kernel=True)
        plan = torch.zeros(layout.num_words, dtype=torch.int32)
        plan_decode_work(layout, np.array(num_keys, np.int32), tables.numpy(), page_size, plan.numpy())
        self.work = DecodeWork(layout, plan.to(device), make_decode_scratch(layout, head_dim, torch.device(device)))
        self.tables, self.num_keys = tables.to(device), torch.tensor(num_keys, dtype=torch.int32, device=device)
        positions = self.num_keys - 1
        angles = torch.rand(256, head_dim // 2, generator=generator, device=device) * 6
        slots = torch.arange(num_rows, device=device) * 16 * page_size + positions
        norms = HeadNorms(make(head_dim), make(head_dim), 1e-5)
        self.heads = StoreHeads(self.cache, RopeTables(angles.cos(), angles.sin()), positions, slots, norms)
        self.stream, self.kv = make(num_rows, hidden_size), (self.cache.keys.clone(), self.cache.values.clone())
        self.options = AttentionOptions(head_dim**-0.5, next_weight=self.matrices[1].weight)

    def compute(self, num_layers: int) -> list[Tensor]:
        """Returns the stream, the keys and the values."""
        for now, begin in zip((self.cache.keys, self.cache.values), self.kv, strict=True):
            now.copy_(begin)
        stream = self.stream.clone()
        qkv, out, gate_up, down = self.matrices
        for _ in range(num_layers):
            query = few_rows_linear(stream, qkv, self.norm, self.heads)
            attended = torch.empty_like(query)
            paged_decode(query, self.cache, self.tables, self.num_keys, self.options, attended, self.work)
            few_rows_linear(attended.view(len(query), -1), out, None, AddTo(stream))
            inner = few_rows_linear(stream, gate_up, self.norm, Gate("silu"))
            few_rows_linear(inner, down, None, AddTo(stream))
        return [stream, self.cache.keys.clone(), self.cache.values.clone()]


def test_no_bit_depends_on_when_kernels_start(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers have the same bits in the next run and, on a GPU, in a graph whose kernels prefetch weights and start
    before the last one has ended."""
    monkeypatch.undo()  # poison would be written between the kernels
    if device == "cpu":
        chain = Chain(2, 1, 64, (128, 96), device)
        first, second = chain.compute(1), chain.compute(1)
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        return
    chain = Chain(16, 8, 128, (1024, 3072), device)
    expected = chain.compute(28)
    assert bool(expected[0].isfinite().all())
    fuse(*FUSIONS)
    chain.compute(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain.compute(28)
    for _ in range(20):
        graph.replay()
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_parts_fill_the_processors() -> None:
    """The four products of Qwen3 0.6B, then the largest of Llama-3 8B: blocks of inputs, and tiles of outputs."""
    assert [find_launch("few_rows_linear", dim, 2)["BLOCK_I"] for dim in (0, 64, 128)] == [128, 128, 64]
    programs = find_launch("few_rows_parts", 128, 2)["programs"]
    cuts = [
        find_part_blocks(*sizes, programs) for sizes in ((16, 32), (16, 16), (8, 96), (24, 16), (32, 448), (3, 999))
    ]
    assert cuts == [2, 1, 3, 2, 32, 3]
    assert -(-16 // cuts[1]) == MAX_PARTS
