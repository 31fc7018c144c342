"""The specializations of `paged_decode` that are compiled in tests."""

import torch

from kernels.gpu.launch_table import HOPPER, Launch, launch_on
from kernels.gpu.paged_decode import attend, constants_of, merge
from kernels.plans.decode_work import DecodeLayout
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes, with_options
from tests.kernels.gpu.cases.model_shapes import HEADS_OF_256, HEADS_OF_512, MODEL_SHAPES, WIDE_SHAPES, ModelShape


def _launch_of(shape: ModelShape, cached: torch.dtype) -> Launch:
    return launch_on(HOPPER, "paged_decode", shape.queries_a_head, shape.head_dim, cached.itemsize)


_SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "key_scales", "value_scales", "out"), "*bf16:16")
    | dict.fromkeys(("page_tables", "plan", "counters"), "*i32:16")
    | dict.fromkeys(("partials", "lses", "sinks"), "*fp32:16")
    | {"next_weight": "*bf16:16"}
    | {"scale_log2": "fp32", "cap_log2": "fp32", "query_stride": "i32:16", "table_stride": "i32"}
)
_MAX_REGISTERS = {2: 232, 4: 168, 8: 168}
"""By warps. With 2 warps a processor has 4 programs; with 4 warps it has 3, or 4 with 128 registers: which of the two
differs with Triton's version."""
_SPILLED_BYTES = {"Qwen3-14B, merges": 24}
"""With Triton 3.6, of a thread."""
_CASES = {
    f"{model}{', merges' if merges else ''}": CompileCase(
        label=f"{model}{', merges' if merges else ''}",
        kernel=attend,
        signature=_SIGNATURE,
        constants={"HEAD_DIM": shape.head_dim, "PAGE_SIZE": 16, "HAS_SCALES": False, "IN_FP8": False}
        | constants_of(DecodeLayout(256, shape.num_heads, shape.num_kv_heads, 528, True, merges)),
        launch=_launch_of(shape, torch.bfloat16),
        max_registers=_MAX_REGISTERS[_launch_of(shape, torch.bfloat16)["num_warps"]],
        max_spilled_bytes=_SPILLED_BYTES.get(f"{model}{', merges' if merges else ''}", 0),
        max_loop_stalls=None if shape is HEADS_OF_512 else 0,
    )
    for model, shape in (MODEL_SHAPES | WIDE_SHAPES).items()
    for merges in (False, True)
}
_MERGE_CASES = tuple(
    CompileCase(
        label=f"{model}, second kernel",
        kernel=merge,
        signature={name: _SIGNATURE[name] for name in ("plan", "partials", "lses", "out", "sinks")},
        constants={"NUM_HEADS": shape.num_heads, "HEAD_DIM": shape.head_dim, "HAS_SINKS": False},
        launch=launch_on(HOPPER, "paged_decode_merge", shape.head_dim),
        max_registers=64,
    )
    for model, shape in MODEL_SHAPES.items()
)
COMPILE_CASES = (
    *_CASES.values(),
    *_MERGE_CASES,
    *(
        with_codes(
            _CASES[f"{model}, merges"],
            {"HAS_SCALES": True},
            launch=_launch_of(shape, torch.float8_e4m3fn),
            max_registers=128,
            # Blocks of 128 keys spill in their loop and are the fastest on an H200 nevertheless (`launch_table.py`).
            max_spilled_bytes=32 if shape.head_dim == 64 else 512,
            max_loop_stalls=0 if shape.head_dim == 64 else 320,
        )
        for model, shape in MODEL_SHAPES.items()
    ),
    *(
        with_codes(
            _CASES[f"{model}, merges"],
            {"HAS_SCALES": True, "IN_FP8": True},
            launch=launch_on(HOPPER, "paged_decode_fp8", shape.queries_a_head, shape.head_dim, 1),
            max_registers=255,
            has_wgmma=True,
            max_loop_stalls=0,
        )
        for model, shape in (MODEL_SHAPES | {"heads of 256": HEADS_OF_256}).items()
    ),
    *(
        in_float32(
            _CASES[model],
            launch=_launch_of(shape, torch.float32),
            max_registers=255 if shape is HEADS_OF_256 else 192,
            max_loop_stalls=None if shape is HEADS_OF_256 else 0,
        )
        for model, shape in (MODEL_SHAPES | {"heads of 256": HEADS_OF_256}).items()
        if model != "Qwen3-14B"
    ),
    in_float32(_MERGE_CASES[0]),
    with_options(_CASES["Qwen3-0.6B, merges"], _MAX_REGISTERS[2], HAS_CAP=True, HAS_SINKS=True),
    with_options(_CASES["Qwen3-0.6B, merges"], _MAX_REGISTERS[2], NEXT_LINES=32768, IS_DEPENDENT=True),
)
