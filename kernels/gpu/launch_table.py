"""The launch parameters of the Triton kernels: blocks, warps and stages by kernel, shape and compute capability.

A rule gives a kernel's parameters for any shape on any GPU. An entry of `TUNED` replaces some of them for one shape on
GPUs of one compute capability; `python -m benchmarks.tune_launches` finds such entries.
"""

from collections.abc import Callable
from functools import cache

import torch

from kernels.arguments.few_rows import FEW_ROWS
from kernels.gpu.tuned_launches import HOPPER, TUNED, Launch
from kernels.plans.decode_work import BLOCK_KEYS

MANY_PROGRAMS = 256
"""Programs that keep all processors of a large GPU (132 in an H100) reading: with fewer, blocks are narrower."""

MAX_KEYS = {1: 32, 2: BLOCK_KEYS, 4: BLOCK_KEYS}
MAX_BLOCK_BYTES = {1: 4096, 2: 16384, 4: 8192}
"""The most keys, and bytes of one head's keys, in a block, by bytes of an element. Codes take registers when they are
widened; float32 products take twice as many as others."""

_is_fixed = False


def fix_launches(is_fixed: bool) -> None:
    """From now on no launch of this process depends on a step's numbers of rows and tokens, except for its grid: a
    token's results are the same bits in any step (`--deterministic`). Call it before kernels are loaded."""
    global _is_fixed  # noqa: PLW0603
    _is_fixed = is_fixed


def has_fixed_launches() -> bool:
    return _is_fixed


def is_many(count: int, limit: int) -> bool:
    """True if a launch is the one for more than `limit` rows; fixed launches always are."""
    return _is_fixed or count > limit


def find_launch(kernel: str, *shape: int) -> Launch:
    """Returns the launch parameters of a kernel on the current GPU; its rule defines what `shape` is.

    Without a GPU they are those of a Hopper GPU: the interpreter runs the kernels that are compiled for one.
    """
    return launch_on(find_capability(), kernel, *shape)


@cache
def launch_on(capability: int, kernel: str, *shape: int) -> Launch:
    """Like `find_launch`, for GPUs of a compute capability such as 90."""
    return {**RULES[kernel](*shape), **TUNED.get((capability, kernel, *shape), {})}


def count_tile_tokens(queries_a_head: int, head_dim: int, itemsize: int) -> int:
    """Returns the new tokens of a prefill tile: each takes a row per query head of a key/value head."""
    kernel = "split_attention" if _is_fixed else "paged_prefill"
    return find_launch(kernel, queries_a_head, head_dim, itemsize)["BLOCK_M"] // queries_a_head


@cache
def find_capability() -> int:
    """Returns the compute capability of the current GPU, or Hopper's without one."""
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else divmod(HOPPER, 10)
    return 10 * major + minor


def power_of_2(size: int) -> int:
    """Returns the smallest power of 2 that is not smaller."""
    return 1 << (size - 1).bit_length()


def _blocks(block: int) -> Callable[[], Launch]:
    return lambda: {"BLOCK": block, "num_warps": 4}


def _row(size: int) -> Launch:
    """A program holds a whole row in its registers: 16 elements per thread, two loads of 16 bytes per operand."""
    block = power_of_2(size)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


def _heads(num_heads: int, num_kv_heads: int, head_dim: int) -> Launch:
    """As many heads per program as both kinds fill, and half a head dimension."""
    heads, half = min(8, power_of_2(min(num_heads, num_kv_heads))), power_of_2((head_dim + 1) // 2)
    return {"HEADS": heads, "HALF": half, "num_warps": max(1, heads * half // 128)}


def _part(vocab_size: int) -> Launch:
    """A part of a row of the vocabulary: many multiprocessors read one row."""
    block = min(4096, max(128, power_of_2(vocab_size)))
    return {"BLOCK": block, "num_warps": 8 if block == 4096 else 4}


def _sampled_part(vocab_size: int) -> Launch:
    """Fewer warps: each repeats the work for a single token."""
    return {**_part(vocab_size), "num_warps": 4}


def _drawn_part(vocab_size: int) -> Launch:
    """With more registers a program fewer runs per processor; Triton 3.6 would take them."""
    return {**_sampled_part(vocab_size), "maxnreg": 128}


def _best_of_parts(num_parts: int) -> Launch:
    block = power_of_2(num_parts)
    return {"BLOCK": block, "num_warps": max(1, min(8, block // 256))}


def _candidates(vocab_size: int) -> Launch:
    """A part, and the maximum number of candidates it lists; numbering them takes registers."""
    part = _part(vocab_size)
    return {**part, "CANDIDATES": 128, "num_warps": max(4, part["BLOCK"] // 256)}


def _lanes(num_tokens: int) -> Launch:
    """The tokens of a row, or its candidates, that a program handles together."""
    block = min(8192, max(128, power_of_2(num_tokens)))
    return {"BLOCK": block, "num_warps": max(1, block // 512)}


def _candidates_of_row(num_lanes: int) -> Launch:
    """As for `_drawn_part`."""
    return {**_lanes(num_lanes), "maxnreg": 128}


def _key_blocks(head_dim: int, itemsize: int) -> Launch:
    """With 3 stages the page numbers of a block are read before its K and V are loaded; float32 heads of 256 leave
    registers for one. `itemsize`: as of `launch_shape_of`."""
    block_dim = max(16, power_of_2(head_dim))
    head_bytes = block_dim * itemsize
    block_keys = min(MAX_KEYS[itemsize], max(16, MAX_BLOCK_BYTES[itemsize] // head_bytes))
    num_warps, num_stages = 4 if block_dim <= 128 else 8, 3 if head_bytes <= 512 else 1
    return {"BLOCK_N": block_keys, "BLOCK_D": block_dim, "num_warps": num_warps, "num_stages": num_stages}


def _decode(queries_a_head: int, head_dim: int, itemsize: int) -> Launch:
    """A block of codes has few bytes: 4 programs per processor load enough of them, and 128 registers leave room."""
    blocks = _key_blocks(head_dim, itemsize)
    return {**blocks, "maxnreg": 128} if itemsize == 1 and blocks["num_warps"] == 4 else blocks


def _decode_fp8(queries_a_head: int, head_dim: int, itemsize: int) -> Launch:
    """Products of a warp group have 64 keys at least; 128 leave two programs per processor."""
    block_dim = power_of_2(head_dim)
    return {"BLOCK_N": 128 if block_dim <= 128 else 64, "BLOCK_D": block_dim, "num_warps": 4, "num_stages": 3}


def _decode_work(queries_a_head: int, head_dim: int, itemsize: int) -> Launch:
    """How the work list of decode attention is cut and merged: `programs` per processor (0: as many as run side by
    side), and whether the kernel `merges` parts itself."""
    return {"programs": 0, "merges": 0}


def _decode_merge(head_dim: int) -> Launch:
    """`BLOCK_P`: parts read at a time."""
    return {"BLOCK_P": 32, "BLOCK_D": max(16, power_of_2(head_dim)), "num_warps": 4}


def _prefill(queries_a_head: int, head_dim: int, itemsize: int) -> Launch:
    """Like decode, with `BLOCK_M` rows of products: the query heads of a key/value head are side by side. Products of a
    warp group (wgmma) take at least 64 rows, for which float32 heads of 256 leave no registers, nor do any of 512."""
    rows = 64 if head_dim <= 256 and head_dim * itemsize <= 512 else 16 if itemsize == 4 else 32
    return {**_key_blocks(head_dim, itemsize), "BLOCK_M": max(rows, power_of_2(queries_a_head))}


def _long_prefill(head_dim: int, has_spans: bool) -> Launch:
    """`SPECIALIZES`: some warps load, two groups of `num_warps` compute. K and V of 2 blocks are in shared memory."""
    return {"BLOCK_N": 128, "SPECIALIZES": int(not has_spans), "num_warps": 8 if has_spans else 4, "num_stages": 2}


def _split_attention(queries_a_head: int, head_dim: int, itemsize: int) -> Launch:
    """As `_prefill`, also of decode rows; the totals of splits take registers from the block of keys, or of rows. Fused
    products and sums would depend on the code around them."""
    launch = dict(_prefill(queries_a_head, head_dim, itemsize))
    if launch["BLOCK_D"] > 64 and itemsize < 4:
        launch["BLOCK_N"] = min(32, launch["BLOCK_N"])
    elif launch["BLOCK_D"] == 128:
        launch["BLOCK_M"] = max(32, power_of_2(queries_a_head))
    return {**launch, "enable_fp_fusion": False}


def _split_merge(head_dim: int) -> Launch:
    """As `_split_attention`."""
    return {"BLOCK_D": max(16, power_of_2(head_dim)), "num_warps": 1, "enable_fp_fusion": False}


def _latent_prefill(num_heads: int, rank: int, num_rotated: int, itemsize: int) -> Launch:
    """Attention to latents: 8 warps share the sums of up to 512 values, which leave registers for 32 rows of products,
    and for 16 in float32."""
    block_keys, num_stages = (16, 1) if itemsize == 4 and rank > 256 else (32, 3)
    blocks = {"BLOCK_C": max(16, power_of_2(rank)), "BLOCK_X": max(16, power_of_2(num_rotated))}
    launch = {"BLOCK_M": 32, "BLOCK_N": block_keys, **blocks, "num_warps": 8, "num_stages": num_stages}
    return {**launch, "BLOCK_M": 16, "maxnreg": 255} if itemsize == 4 else launch


def _latent_decode(num_heads: int, rank: int, num_rotated: int, itemsize: int) -> Launch:
    """As `_latent_prefill`; two programs of 16 rows run side by side on a processor."""
    launch = _latent_prefill(num_heads, rank, num_rotated, itemsize)
    return launch if num_heads > 16 or itemsize == 4 else {**launch, "BLOCK_M": 16, "num_warps": 4}


def _split_latents(num_heads: int, rank: int, num_rotated: int, itemsize: int) -> Launch:
    """As `_split_attention`: the totals of splits take the registers of 16 rows."""
    launch = _latent_prefill(num_heads, rank, num_rotated, itemsize)
    return {**launch, "BLOCK_M": 16, "maxnreg": 255, "enable_fp_fusion": False}


def _latent_merge(rank: int) -> Launch:
    """As `_split_attention`."""
    return {"BLOCK_C": max(16, power_of_2(rank)), "num_warps": 1, "enable_fp_fusion": False}


def _store_latents(num_heads: int, num_plain: int, rank: int, num_rotated: int) -> Launch:
    """Some heads a program, or a latent."""
    block = power_of_2(num_plain)
    blocks = {"BLOCK_N": block, "BLOCK_C": power_of_2(rank), "BLOCK_Y": power_of_2(num_rotated // 2)}
    return {"HEADS": min(power_of_2(num_heads), max(1, 1024 // block)), **blocks, "num_warps": 4}


def _plain_linear(itemsize: int) -> Launch:
    """One tile for any number of tokens: with more than 64 a step of few would be bound by products."""
    if itemsize == 4:
        return {"BLOCK_O": 64, "BLOCK_T": 32, "BLOCK_I": 32, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_O": 128, "BLOCK_T": 64, "BLOCK_I": 64, "num_warps": 4, "num_stages": 3}


def _planes_linear(itemsize: int) -> Launch:
    """Products of a warp group (wgmma) take 64 outputs at least. Without a second tile for fewer tokens half as many
    kernels are compiled; it would save a tenth of the instructions. `itemsize`: bytes of an activation."""
    block_tokens, num_stages = (32, 3) if itemsize < 4 else (16, 2)
    return {"BLOCK_O": 64, "BLOCK_T": block_tokens, "num_warps": 4, "num_stages": num_stages}


def _scaled_linear(has_many_tokens: bool, block_inputs: int) -> Launch:
    """Few tokens: as `_planes_linear`, and what is on its way to a processor is 36 KB of three programs each. Many:
    weights and tokens are loaded as often as each other."""
    if has_many_tokens:
        return {"BLOCK_O": 128, "BLOCK_T": 128, "BLOCK_I": block_inputs, "num_warps": 8, "num_stages": 3}
    return {"BLOCK_O": 64, "BLOCK_T": 32, "BLOCK_I": block_inputs, "num_warps": 4, "num_stages": 4}


def _few_rows_linear(head_dim: int, itemsize: int) -> Launch:
    """The tile of few rows of `_expert_plain_linear`, or a head: three programs have 64 KB each on their way. Products
    of a warp group take 8 tokens at least."""
    block = head_dim or 64
    block_inputs, num_stages = (32, 3) if itemsize == 4 else (128 if block <= 64 else 64, 4 if block <= 128 else 2)
    return {"BLOCK_O": block, "BLOCK_T": FEW_ROWS, "BLOCK_I": block_inputs, "num_warps": 4, "num_stages": num_stages}


def _choose_experts(num_experts: int, num_chosen: int) -> Launch:
    """A token is chosen for by a warp or two: reductions across more take longer."""
    block = power_of_2(num_experts)
    return {"BLOCK_X": block, "BLOCK_K": power_of_2(num_chosen), "num_warps": max(1, min(4, block // 256))}


def _expert_plain_linear(has_many_rows: bool, itemsize: int) -> Launch:
    """An expert with few rows is read as fast as memory allows; with many, its weight is used for 64 rows at a time."""
    if itemsize == 4:
        return {"BLOCK_O": 64, "BLOCK_R": 64 if has_many_rows else 16, "BLOCK_I": 32, "num_warps": 4, "num_stages": 3}
    if has_many_rows:
        return {"BLOCK_O": 128, "BLOCK_R": 64, "BLOCK_I": 64, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_O": 64, "BLOCK_R": 16, "BLOCK_I": 128, "num_warps": 4, "num_stages": 4}


def _expert_planes_linear(has_many_rows: bool, looks_up: bool, itemsize: int) -> Launch:
    """As `_planes_linear`; the fewest rows of a tile are those that a product takes. Look-ups in tables, and codes in
    float32, take the registers of more."""
    many_rows = 64 if itemsize < 4 and not looks_up else 32
    return {**_planes_linear(itemsize), "BLOCK_T": many_rows if has_many_rows else 16}


def _lora_shrink(has_many_tokens: bool, max_rank: int, itemsize: int) -> Launch:
    """Few tokens take as long as reading A; with many, each part of it is used for 64, for which float32 leaves no
    registers. A product takes 16 rows of A at least."""
    has_many_tokens = has_many_tokens and itemsize < 4
    rows = min(64 if has_many_tokens else 32, max(16, power_of_2(max_rank)))
    block_inputs = 256 if itemsize < 4 and not has_many_tokens else 128
    return {"BLOCK_M": 64 if has_many_tokens else 16, "BLOCK_R": rows, "BLOCK_I": block_inputs, "num_warps": 4}


def _lora_expand(has_many_tokens: bool, itemsize: int) -> Launch:
    """As `_lora_shrink`."""
    block_tokens = (64 if itemsize < 4 else 32) if has_many_tokens else 16
    return {"BLOCK_M": block_tokens, "BLOCK_R": 16, "BLOCK_O": 128, "num_warps": 4}


def _groups(group_size: int) -> Launch:
    """Small groups share a program."""
    block = power_of_2(group_size)
    groups = max(1, 512 // block)
    return {"BLOCK": block, "GROUPS": groups, "num_warps": min(16, max(1, groups * block // 512))}


def _short_conv(is_decode: bool) -> Launch:
    """The inputs of all taps are in registers."""
    if is_decode:
        return {"BLOCK_M": 1, "BLOCK_C": 256, "num_warps": 2}
    return {"BLOCK_M": 32, "BLOCK_C": 64, "num_warps": 4}


def _state_step(key_size: int, value_size: int) -> Launch:
    """A part of a head's matrix, which is read and written once: many programs read at a time."""
    block = power_of_2(key_size)
    return {"BLOCK_D": block, "BLOCK_V": min(power_of_2(value_size), max(1, 4096 // block)), "num_warps": 4}


def _state_carry(key_size: int) -> Launch:
    """The state of a program's values stays in its registers. One warp group computes products of 64 rows."""
    return {**_state_products(key_size), "BLOCK_V": 16}


def _state_products(key_size: int) -> Launch:
    block = max(16, power_of_2(key_size))
    return {"BLOCK_D": block, "num_warps": 4 if block <= 128 else 8, "num_stages": 1}


RULES: dict[str, Callable[..., Launch]] = {
    "allow_tokens": _blocks(4096),
    "apply_bitmask": _blocks(4096),
    "best_of_row": _best_of_parts,
    "choose_experts": _choose_experts,
    "combine_experts": _blocks(1024),
    "decode_work": _decode_work,
    "draw": _drawn_part,
    "draw_filtered": _candidates,
    "draw_filtered_row": _candidates_of_row,
    "expert_plain_linear": _expert_plain_linear,
    "expert_planes_linear": _expert_planes_linear,
    "few_rows_linear": _few_rows_linear,
    "few_rows_parts": lambda head_dim, itemsize: {"programs": MANY_PROGRAMS},
    "filter_min_p": _lanes,
    "filter_top": _lanes,
    "gather_keys": lambda: {"num_warps": 8},
    "gather_rows": _blocks(1024),
    "gated_norm": _groups,
    "gelu": _blocks(1024),  # 16 bytes a thread and operand
    "greedy": _part,
    "latent_decode": _latent_decode,
    "latent_merge": _latent_merge,
    "latent_prefill": _latent_prefill,
    "layer_norm": _row,
    "long_prefill": _long_prefill,
    "look_up_planes": lambda: {"BLOCK_O": 16, "num_warps": 4},
    "lora_expand": _lora_expand,
    "lora_shrink": _lora_shrink,
    "pair_entries": _blocks(256),
    "paged_decode": _decode,
    "paged_decode_fp8": _decode_fp8,
    "paged_decode_merge": _decode_merge,
    "paged_prefill": _prefill,
    "place_rows": _blocks(1024),
    "plain_linear": _plain_linear,
    "planes_linear": _planes_linear,
    "planes_linear_sum": _blocks(256),
    "quantize_rows": _row,
    "rms_norm": _row,
    "rotate_store": _heads,
    "sample": _sampled_part,
    "scaled_linear": _scaled_linear,
    "short_conv": _short_conv,
    "sigmoid_gate": _blocks(1024),
    "silu_mul": _blocks(1024),
    "split_attention": _split_attention,
    "split_latents": _split_latents,
    "split_merge": _split_merge,
    "state_carry": _state_carry,
    "state_prepare": _state_products,
    "state_step": _state_step,
    "store_hidden": _blocks(1024),
    "store_latents": _store_latents,
    "take_tokens": _blocks(128),
    "top_logprobs": _part,
    "top_logprobs_row": _best_of_parts,
}
"""By kernel, or by operation if it has one kernel."""
