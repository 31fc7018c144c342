"""What captured calls compute is what the launchers compute, on whatever the memory holds at the time."""

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.cpu.capture import capture_calls, timed_kernels
from kernels.cpu.library import find_kernel
from kernels.formats.embed import embed
from kernels.formats.plain import PlainWeight
from kernels.operations.block_linear import block_linear
from kernels.operations.gelu import gelu
from kernels.operations.gelu_mul import gelu_mul
from kernels.operations.layer_norm import layer_norm
from kernels.operations.packed_linear import has_packed_kernel, pack, packed_linear
from kernels.operations.paged_decode import paged_decode
from kernels.operations.quantize import quantize
from kernels.operations.rescale import rescale
from kernels.operations.rms_norm import rms_norm
from kernels.operations.rotate_store import rotate_store
from kernels.operations.sample import draw
from kernels.operations.silu_mul import silu_mul
from tests.kernels.cases import Shape, make_paged_case

DTYPES = [torch.float32, torch.bfloat16]
SIZE, NUM_TOKENS = 96, 40


@pytest.fixture(autouse=True)
def with_kernels(backend: str) -> None:
    if find_kernel("embed", torch.float32) is None:
        pytest.skip(f"{backend} has no calls to capture")


@pytest.fixture(params=[1, 3])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Layers:
    """Every operation that can be captured, one after another."""

    def __init__(self, dtype: torch.dtype):
        def random(*shape: int) -> Tensor:
            return torch.randn(shape).to(dtype)

        self.ids = torch.randint(0, 50, (NUM_TOKENS,), dtype=torch.int32)
        self.positions = torch.randint(0, 9, (NUM_TOKENS,), dtype=torch.int32)
        self.tokens, self.places = random(50, SIZE), random(9, SIZE)
        self.weight, self.bias = random(SIZE), random(SIZE)
        self.codes = quantize(random(2 * SIZE, SIZE), 8)
        self.draws = torch.arange(NUM_TOKENS) % 2 * 0.9, torch.arange(NUM_TOKENS), torch.arange(NUM_TOKENS) + 7
        packed_weight = random(SIZE, SIZE)
        self.packed = pack(packed_weight) if has_packed_kernel(packed_weight) else None

    def compute(self) -> Tensor:
        residual = embed(self.ids, self.positions, PlainWeight(self.tokens), self.places)
        normed = layer_norm(residual, self.weight, self.bias, 1e-5)
        update = gelu(silu_mul(block_linear(normed, self.codes, None)), "tanh")
        update = rescale(gelu_mul(block_linear(normed, self.codes, None)), 1.5, update)
        if self.packed is not None:
            update = packed_linear(update, self.packed, self.bias, SIZE)
        self.chosen = draw(update, *self.draws)
        return rms_norm(residual, self.weight, 1e-5, update)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("num_threads")
def test_a_replay_computes_anew(dtype: torch.dtype) -> None:
    layers = Layers(dtype)
    first, calls, other = capture_calls(layers.compute)
    assert other is None
    assert calls is not None
    chosen = layers.chosen
    assert torch.equal(first, layers.compute())
    for _ in range(3):
        layers.ids.random_(0, 50)
        expected = layers.compute()
        tokens = layers.chosen
        first.fill_(float("nan"))
        chosen.zero_()
        calls.replay()
        assert torch.equal(first, expected)
        assert torch.equal(chosen, tokens)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_replay_continues_next_to_what_its_caller_does(dtype: torch.dtype, num_threads: int) -> None:
    layers = Layers(dtype)
    first, calls, _ = capture_calls(layers.compute)
    assert calls is not None
    for _ in range(20):
        layers.ids.random_(0, 50)
        expected = layers.compute()
        first.fill_(float("nan"))
        assert calls.begin() == (num_threads > 1), "there are other threads"
        sum(range(10_000))
        calls.replay()
        assert torch.equal(first, expected)
        first.fill_(float("nan"))
        calls.replay()
        assert torch.equal(first, expected), "the next one makes all calls again"


@pytest.mark.parametrize("num_threads", [3], indirect=True)
@pytest.mark.usefixtures("num_threads")
def test_one_replay_at_a_time_is_begun() -> None:
    both = [Layers(torch.float32) for _ in range(2)]
    results = [capture_calls(layers.compute) for layers in both]
    (first, calls, _), (second, others, _) = results
    assert calls is not None
    assert others is not None
    expected = [result.clone() for result in (first, second)]
    for _ in range(20):
        first.fill_(float("nan"))
        second.fill_(float("nan"))
        assert calls.begin()
        assert not others.begin()
        others.replay()
        calls.replay()
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1])
    assert others.begin()
    others.replay()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("num_threads")
def test_attention_follows_the_lengths_that_it_finds(dtype: torch.dtype) -> None:
    shape, lengths = Shape(6, 2, 64, 16), [0, 63, 299, 5]
    case = make_paged_case(shape, [1] * 4, lengths, dtype, "cpu")
    heads = torch.randn(4, 10, 64).to(dtype)
    norm = torch.randn(64).to(dtype)
    tables = RopeTables(torch.rand(400, 32), torch.rand(400, 32))
    slots = torch.tensor([int(row[n // 16]) * 16 + n % 16 for row, n in zip(case.page_tables, lengths, strict=True)])
    num_keys = torch.ones(4, dtype=torch.int32)
    out = torch.empty_like(case.query)

    def attend() -> Tensor:
        query = rotate_store(heads, case.cache, tables, num_keys, slots, HeadNorms(norm, norm, 1e-6))
        paged_decode(query, case.cache, case.page_tables, num_keys, case.options, out)
        return out

    _, calls, other = capture_calls(attend)
    assert other is None
    assert calls is not None
    num_keys.copy_(case.context_lens + 1)
    fresh = torch.randn(4, 10, 64).to(dtype)
    heads.copy_(fresh)
    expected = attend().clone()
    heads.copy_(fresh)
    out.fill_(float("nan"))
    calls.replay()
    assert torch.equal(out, expected)
    assert bool(expected.isfinite().all())


@pytest.mark.parametrize("num_threads", [2, 8], indirect=True)
@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("begins", [False, True])
def test_each_item_is_computed_once_the_one_who_takes_it(begins: bool) -> None:
    """A residual counts how often a token's update has been added to it; operations follow each other at once."""
    num_tokens, num_operations, num_rounds = 50, 500, 20
    residual, update = torch.zeros(num_tokens, SIZE), torch.ones(num_tokens, SIZE)
    weight, bias = torch.ones(SIZE), torch.zeros(SIZE)

    def compute() -> Tensor:
        for _ in range(num_operations):
            normed = layer_norm(residual, weight, bias, 1e-5, update)
        return normed

    _, calls, _ = capture_calls(compute)
    assert calls is not None
    for _ in range(num_rounds):
        if begins:
            assert calls.begin()
        calls.replay()
    compute()
    assert bool((residual == (2 + num_rounds) * num_operations).all())


def test_each_call_is_timed_where_that_is_requested() -> None:
    layers, notes = Layers(torch.float32), list[tuple[str, int, int]]()
    _, calls, _ = capture_calls(layers.compute)
    assert calls is not None

    def record(name: str, began_ns: int, ended_ns: int) -> None:
        notes.append((name, began_ns, ended_ns))

    with timed_kernels(record):
        began_ns = time.monotonic_ns()
        layers.compute()
        launched, notes[:] = [name for name, _, _ in notes], []
        calls.replay()
    assert launched == [name for name, _, _ in notes]
    assert launched[:2] == ["embed", "layer_norm"]
    times = [began_ns, *(at_ns for _, began, ended in notes for at_ns in (began, ended)), time.monotonic_ns()]
    assert times == sorted(times)
    calls.replay()
    layers.compute()
    assert len(notes) == len(launched)


@pytest.mark.parametrize("num_threads", [3], indirect=True)
@pytest.mark.usefixtures("num_threads")
def test_calls_that_are_timed_are_not_begun_next_to_anything() -> None:
    layers, names = Layers(torch.float32), list[str]()
    _, calls, _ = capture_calls(layers.compute)
    assert calls is not None
    with timed_kernels(lambda name, began_ns, ended_ns: names.append(name)):
        assert not calls.begin()
        calls.replay()
    assert names[:2] == ["embed", "layer_norm"]


def test_more_items_than_one_operation_of_a_crew_may_have() -> None:
    num_tokens = (1 << 20) + 5
    ids, positions = torch.arange(num_tokens, dtype=torch.int32), torch.zeros(num_tokens, dtype=torch.int32)
    table, room = torch.arange(num_tokens, dtype=torch.float32)[:, None], torch.empty(num_tokens, 1)
    _, calls, _ = capture_calls(lambda: embed(ids, positions, PlainWeight(table), None, room))
    assert calls is not None
    room.zero_()
    calls.replay()
    assert torch.equal(room, table)


def test_what_others_compute_is_named() -> None:
    x, weight = torch.randn(2, SIZE), torch.ones(SIZE)
    for compute, name in (
        (lambda: rms_norm(x, weight, 1e-5) * 2, "torch's mul"),
        (lambda: gelu(x, "exact").tanh(), "torch's tanh"),
    ):
        result, calls, other = capture_calls(compute)
        assert torch.equal(result, compute())
        assert calls is None
        assert other == name


def test_a_launcher_is_as_before_after_a_recording_that_fails() -> None:
    def fail() -> Tensor:
        raise ValueError("no result")

    kernel = find_kernel("gelu", torch.float32)
    with pytest.raises(ValueError, match="no result"):
        capture_calls(fail)
    assert find_kernel("gelu", torch.float32) is kernel


IMPORTS = """
import sys, torch
from kernels.cpu.library import use_library
from kernels.cpu.capture import capture_calls
from tests.kernels.c_library import built_library
use_library(built_library())
others = set(sys.modules)
_, calls, other = capture_calls(lambda: torch.empty(4, 8).view(2, 16)[:1])
assert calls is not None, other
assert "torch._dynamo" not in set(sys.modules) - others
"""


def test_the_first_capture_does_not_import_torchs_compiler(backend: str) -> None:
    """That takes a second, which the first request of a server would wait for."""
    if backend != "portable":
        pytest.skip("once is enough")
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
