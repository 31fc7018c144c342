"""The sweeps of `tune_launches`: an operation's cases, its candidates, and a call with the parameters of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import ModuleType

import numpy as np
import torch

from benchmarks.kernels.cases import PAGE_SIZE, Case, MadeCase, make_case
from benchmarks.kernels.measure import Form
from kernels.arguments.attention_options import AttentionOptions
from kernels.arguments.few_rows import AddTo, Gate, PlainMatrix, RowNorm
from kernels.arguments.rows import PrefillRows
from kernels.dispatch import count_programs
from kernels.gpu import few_rows_linear as triton_few_rows
from kernels.gpu import long_prefill as triton_long_prefill
from kernels.gpu import paged_decode as triton_decode
from kernels.gpu import paged_prefill as triton_prefill
from kernels.gpu.fusions import fuse
from kernels.gpu.launch_table import Launch, find_launch
from kernels.operations.few_rows_linear import few_rows_linear, few_rows_linear_reference
from kernels.operations.paged_decode import paged_decode, paged_decode_reference
from kernels.operations.paged_prefill import paged_prefill, paged_prefill_reference
from kernels.plans.decode_work import (
    DecodeLayout,
    DecodeShape,
    DecodeWork,
    launch_shape_of,
    make_decode_scratch,
    plan_decode_work,
)
from kernels.plans.prefill_tiles import LONG_TILE_TOKENS, TILE_WORDS, max_prefill_tiles, plan_prefill_tiles
from tests.kernels.gpu.cases.model_shapes import ModelShape

Candidate = Mapping[str, int]
"""Parameters of an operation's entries in the launch table, by name."""


@dataclass(frozen=True)
class Trial:
    """One case: `call` makes a form with a candidate's parameters, which should leave `expected` in `out`."""

    name: str
    num_bytes: int
    out: torch.Tensor
    expected: torch.Tensor
    call: Callable[[Candidate], Form]


@dataclass(frozen=True)
class Sweep:
    """An operation: its module, its entries in the table with their parameters, cases (rows, tokens) and candidates."""

    module: ModuleType
    entries: Mapping[str, Sequence[str]]
    sizes: Sequence[tuple[int, int]]
    quick_size: tuple[int, int]
    list_candidates: Callable[[Candidate], list[Candidate]]
    """Alternatives to the parameters in use, which they exclude."""
    find_in_use: Callable[[ModelShape, torch.device], Candidate]
    make_trial: Callable[[ModelShape, tuple[int, int], torch.device], Trial]
    codes: torch.dtype | None = None
    """The dtype of the cache's codes, if it has codes."""
    find_key: Callable[[ModelShape], tuple[int, ...]] | None = None

    def key(self, shape: ModelShape) -> tuple[int, ...]:
        """Returns what the table knows the shape by."""
        return launch_shape(shape, self.codes) if self.find_key is None else self.find_key(shape)

    def with_parameters(self, candidate: Candidate, call: Callable[[], object]) -> Form:
        """Returns `call` with these parameters in place of the table's, until `put_back_afterwards` ends."""

        def find(kernel: str, *shape: int) -> Launch:
            return {**find_launch(kernel, *shape), **pick(candidate, self.entries.get(kernel, ()))}

        def form() -> None:
            vars(self.module)["find_launch"] = find
            call()

        return form

    @contextmanager
    def put_back_afterwards(self) -> Iterator[None]:
        """The kernel asks the table again."""
        try:
            yield
        finally:
            vars(self.module)["find_launch"] = find_launch


def pick(candidate: Candidate, names: Sequence[str]) -> dict[str, int]:
    return {name: candidate[name] for name in names}


def launch_shape(shape: ModelShape, codes: torch.dtype | None = None) -> tuple[int, int, int]:
    """By which the table knows attention of bfloat16, whose cache may have codes."""
    return launch_shape_of(shape.queries_a_head, shape.head_dim, torch.bfloat16, codes or torch.bfloat16)


def _random_case(
    shape: ModelShape, num_rows: int, num_new: int, num_before: int, device: torch.device, codes: torch.dtype | None
) -> MadeCase:
    case = Case(shape.num_heads, shape.num_kv_heads, shape.head_dim, num_rows, num_new, num_before)
    # The interpreter is right for float32; its times mean nothing anyway.
    return make_case(case, device, torch.bfloat16 if device.type == "cuda" else torch.float32, codes)


def count_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


DECODE_LAUNCHES = ((64, 4, 3), (64, 4, 4), (64, 4, 2), (64, 2, 3), (32, 4, 3), (32, 4, 4), (128, 4, 2), (128, 8, 3))
"""Keys of a block, warps, stages."""
DECODE_PROGRAMS = (2, 3, 4, 6, 8)
"""A processor: the work list is cut until about as many have an item."""


def _decode_in_use(codes: torch.dtype | None, shape: ModelShape, device: torch.device) -> Candidate:
    heads = DecodeShape(shape.num_heads, shape.num_kv_heads, shape.head_dim, PAGE_SIZE, torch.bfloat16, codes)
    programs = max(1, count_programs(heads, device) // count_processors(device))
    launch = find_launch("paged_decode", *launch_shape(shape, codes))
    names = ("BLOCK_N", "num_warps", "num_stages", *(("maxnreg",) if codes is not None else ()))
    merges = find_launch("decode_work", *launch_shape(shape, codes))["merges"]
    return {**pick(launch, names), "merges": merges, "programs": programs}


def _decode_candidates(in_use: Candidate) -> list[Candidate]:
    """The way to merge that is not in use is tried with the launch in use alone, because each way is compiled."""
    launch = in_use["BLOCK_N"], in_use["num_warps"], in_use["num_stages"]
    ways = [*product(DECODE_LAUNCHES, (in_use["merges"],)), (launch, 1 - in_use["merges"])]
    every: list[Candidate] = [
        {"BLOCK_N": block, "num_warps": warps, "num_stages": stages, "programs": programs, "merges": merges}
        for ((block, warps, stages), merges), programs in product(ways, DECODE_PROGRAMS)
    ]
    return [candidate for candidate in every if candidate != in_use]


FP8_LAUNCHES = ((64, 4, 2), (64, 4, 3), (64, 8, 2), (128, 4, 2), (128, 8, 2), (32, 4, 2))
FP8_REGISTERS = (128, 168, 248)
"""The most registers of a thread."""


def _fp8_candidates(in_use: Candidate) -> list[Candidate]:
    every: list[Candidate] = [
        dict(zip(DECODE_FP8.entries["paged_decode"], (*launch, registers), strict=True))
        | {"programs": programs, "merges": in_use["merges"]}
        for launch, registers, programs in product(FP8_LAUNCHES, FP8_REGISTERS, (2, 3, 4))
    ]
    return [candidate for candidate in every if candidate != in_use]


def _decode_trial(
    codes: torch.dtype | None,
    shape: ModelShape,
    size: tuple[int, int],
    device: torch.device,
    sweep: Sweep | None = None,
) -> Trial:
    num_rows, context = size
    made = _random_case(shape, num_rows, 1, context - 1, device, codes)
    num_keys = torch.full((num_rows,), context, dtype=torch.int32, device=device)
    attend = partial(
        paged_decode,
        made.query,
        made.cache,
        made.page_tables,
        num_keys,
        AttentionOptions(shape.head_dim**-0.5),
        made.out,
    )
    paged_decode_reference(*attend.args)
    works: dict[tuple[int, int], DecodeWork] = {}

    def call(candidate: Candidate) -> Form:
        cut = candidate["programs"], candidate["merges"]
        if cut not in works:
            works[cut] = plan_decode(made, num_keys, *cut)
        of_codes = sweep or (DECODE if codes is None else DECODE_FP8)
        return of_codes.with_parameters(candidate, partial(attend, works[cut]))

    num_bytes = 2 * num_rows * context * shape.num_kv_heads * shape.head_dim * made.cache.keys.itemsize
    return Trial(f"{num_rows} x {context}", num_bytes, made.out, made.out.float().clone(), call)


def plan_decode(made: MadeCase, num_keys: torch.Tensor, programs: int, merges: int) -> DecodeWork:
    device, (num_rows, num_heads, head_dim) = made.query.device, made.query.shape
    num_programs = programs * count_processors(device)
    layout = DecodeLayout(num_rows, num_heads, made.cache.num_heads, num_programs, num_rows > 1, bool(merges))
    words = torch.zeros(layout.num_words, dtype=torch.int32)
    lens, tables = num_keys.cpu().numpy().astype(np.int32), made.page_tables.cpu().numpy()
    plan_decode_work(layout, lens, tables, made.cache.page_size, words.numpy())
    return DecodeWork(layout, words.to(device), make_decode_scratch(layout, head_dim, device))


DECODE = Sweep(
    module=triton_decode,
    entries={"paged_decode": ("BLOCK_N", "num_warps", "num_stages"), "decode_work": ("programs", "merges")},
    sizes=((256, 512), (32, 512), (1, 512), (64, 8192), (256, 1024), (1, 8192)),
    quick_size=(2, 100),
    list_candidates=_decode_candidates,
    find_in_use=partial(_decode_in_use, None),
    make_trial=partial(_decode_trial, None),
)
FP8 = torch.float8_e4m3fn
DECODE_FP8 = replace(
    DECODE,
    entries={**DECODE.entries, "paged_decode": ("BLOCK_N", "num_warps", "num_stages", "maxnreg")},
    list_candidates=_fp8_candidates,
    find_in_use=partial(_decode_in_use, FP8),
    make_trial=partial(_decode_trial, FP8),
    codes=FP8,
)

CODES_LAUNCHES = ((64, 4, 3), (64, 4, 4), (128, 4, 2), (128, 4, 3), (128, 4, 4), (128, 8, 3), (256, 8, 2))
"""As `DECODE_LAUNCHES`, for products of codes."""


def _codes_in_use(shape: ModelShape, device: torch.device) -> Candidate:
    fuse("fp8_attention")
    launch = find_launch("paged_decode_fp8", *launch_shape(shape, FP8))
    cut = pick(_decode_in_use(FP8, shape, device), ("merges", "programs"))
    return {**pick(launch, DECODE_CODES.entries["paged_decode_fp8"]), **cut}


def _codes_candidates(in_use: Candidate) -> list[Candidate]:
    every: list[Candidate] = [
        dict(zip(DECODE_CODES.entries["paged_decode_fp8"], launch, strict=True))
        | {"programs": programs, "merges": in_use["merges"]}
        for launch, programs in product(CODES_LAUNCHES, (1, 2, 3, 4))
    ]
    return [candidate for candidate in every if candidate != in_use]


DECODE_CODES = replace(
    DECODE_FP8,
    entries={"paged_decode_fp8": DECODE.entries["paged_decode"], "decode_work": DECODE.entries["decode_work"]},
    list_candidates=_codes_candidates,
    find_in_use=_codes_in_use,
    make_trial=lambda *case: _decode_trial(FP8, *case, sweep=DECODE_CODES),
)

PREFILL_LAUNCHES = tuple(product((64, 128), (32, 64, 128), (4, 8), (2, 3)))
"""Rows of products, keys of a block, warps, stages."""


LONG_LAUNCHES = ((128, 1, 4, 2), *product((64,), (1,), (4,), (2, 3, 4)), *product((64, 128), (0,), (8,), (2, 3)))
"""Keys of a block, whether warps are specialized, warps, stages."""


def _prefill_in_use(is_long: bool, shape: ModelShape, device: torch.device) -> Candidate:
    sweep = LONG_PREFILL if is_long else PREFILL
    ((kernel, names),) = sweep.entries.items()
    return pick(find_launch(kernel, *sweep.key(shape)), names)


def _prefill_candidates(launches: Sequence[tuple[int, ...]], in_use: Candidate) -> list[Candidate]:
    every = [dict(zip(in_use, values, strict=True)) for values in launches]
    return [candidate for candidate in every if candidate != in_use]


def _prefill_trial(is_long: bool, shape: ModelShape, size: tuple[int, int], device: torch.device) -> Trial:
    num_rows, num_new = size
    made = _random_case(shape, num_rows, num_new, 0, device, None)
    lens = torch.tensor([[num_new] * num_rows, [0] * num_rows], dtype=torch.int32)
    rows = PrefillRows(made.page_tables, lens[0].to(device), lens[1].to(device))
    options = AttentionOptions(shape.head_dim**-0.5)
    paged_prefill_reference(made.query, made.cache, rows, options, made.out)

    def call(candidate: Candidate) -> Form:
        tile_tokens = LONG_TILE_TOKENS if is_long else candidate["BLOCK_M"] // shape.queries_a_head
        tiles = torch.empty(max_prefill_tiles(len(made.query), num_rows, tile_tokens), TILE_WORDS, dtype=torch.int32)
        plan_prefill_tiles(lens[0].numpy(), lens[1].numpy(), tiles.numpy(), tile_tokens)
        planned = replace(rows, tiles=tiles.to(device), is_long=is_long)
        attend = partial(paged_prefill, made.query, made.cache, planned, options, made.out)
        return (LONG_PREFILL if is_long else PREFILL).with_parameters(candidate, attend)

    num_bytes = 2 * made.query.nbytes + 2 * num_rows * num_new * shape.num_kv_heads * shape.head_dim * 2
    return Trial(f"{num_rows} x {num_new} new", num_bytes, made.out, made.out.float().clone(), call)


PREFILL = Sweep(
    module=triton_prefill,
    entries={"paged_prefill": ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")},
    sizes=((16, 512), (1, 128), (1, 8192), (64, 32)),
    quick_size=(1, 40),
    list_candidates=partial(_prefill_candidates, PREFILL_LAUNCHES),
    find_in_use=partial(_prefill_in_use, False),
    make_trial=partial(_prefill_trial, False),
)
LONG_PREFILL = Sweep(
    module=triton_long_prefill,
    entries={"long_prefill": ("BLOCK_N", "SPECIALIZES", "num_warps", "num_stages")},
    sizes=((1, 8192), (2, 4096)),
    quick_size=(1, 40),
    list_candidates=partial(_prefill_candidates, LONG_LAUNCHES),
    find_in_use=partial(_prefill_in_use, True),
    make_trial=partial(_prefill_trial, True),
    find_key=lambda shape: (shape.head_dim, 0),
)

FEW_ROWS_LAUNCHES = (
    (64, 128, 4, 4),
    (64, 128, 4, 3),
    (64, 256, 4, 2),
    (64, 64, 4, 5),
    (32, 128, 4, 4),
    (128, 64, 4, 4),
)
"""Outputs and inputs of a tile, warps, stages."""
FEW_ROWS_PROGRAMS = (128, 256, 384, 512)


def _few_rows_in_use(shape: ModelShape, device: torch.device) -> Candidate:
    launches = {kernel: find_launch(kernel, *FEW_ROWS.key(shape)) for kernel in FEW_ROWS.entries}
    return {name: launches[kernel][name] for kernel, names in FEW_ROWS.entries.items() for name in names}


def _few_rows_candidates(in_use: Candidate) -> list[Candidate]:
    every = [
        dict(zip(in_use, (*launch, programs), strict=True))
        for launch, programs in product(FEW_ROWS_LAUNCHES, FEW_ROWS_PROGRAMS)
    ]
    return [candidate for candidate in every if candidate != in_use]


def _few_rows_trial(shape: ModelShape, size: tuple[int, int], device: torch.device) -> Trial:
    """`size`: tokens, and which of the layer's products. Zeroing, or a copy of the output, is timed with each."""
    num_tokens, which = size
    attended, embedded, inner = shape.num_heads * shape.head_dim, shape.embedding_size, shape.mlp_size
    num_inputs, num_outputs = ((embedded, 2 * inner), (inner, embedded), (attended, embedded))[which]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(num_tokens, num_inputs, device=device).to(dtype)
    matrix = PlainMatrix((torch.randn(num_outputs, num_inputs, device=device) / num_inputs**0.5).to(dtype), None)
    norm = RowNorm(torch.ones_like(x[0]), 1e-6) if which == 0 else None
    out = x.new_zeros(num_tokens, inner if which == 0 else embedded)
    expected = few_rows_linear_reference(x, matrix, norm, AddTo(out.clone()) if norm is None else Gate("silu"))

    def call() -> object:
        if norm is None:
            return few_rows_linear(x, matrix, norm, AddTo(out.zero_()))
        return out.copy_(few_rows_linear(x, matrix, norm, Gate("silu")))

    name = f"{num_tokens} tokens, {num_inputs} to {num_outputs}"
    form = partial(FEW_ROWS.with_parameters, call=call)
    return Trial(name, matrix.weight.nbytes, out, expected.float(), form)


FEW_ROWS = Sweep(
    module=triton_few_rows,
    entries={"few_rows_linear": ("BLOCK_O", "BLOCK_I", "num_warps", "num_stages"), "few_rows_parts": ("programs",)},
    sizes=tuple(product((1, 8), (0, 1, 2))),
    quick_size=(1, 2),
    list_candidates=_few_rows_candidates,
    find_in_use=_few_rows_in_use,
    make_trial=_few_rows_trial,
    find_key=lambda _: (0, torch.bfloat16.itemsize),
)

SWEEPS = {
    "decode": DECODE,
    "decode_fp8": DECODE_FP8,
    "prefill": PREFILL,
    "long_prefill": LONG_PREFILL,
    "decode_codes": DECODE_CODES,
    "few_rows": FEW_ROWS,
}
"""By what to call them."""
