"""The specializations of `paged_decode` that are compiled in tests."""

import torch

from kernels.gpu.launch_table import HOPPER, Launch, launch_on
from kernels.gpu.paged_decode import attend, constants_of, merge
from kernels.plans.decode_work import DecodeLayout
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes, with_options
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape


def _launch_of(shape: ModelShape, dtype: torch.dtype) -> Launch:
    return launch_on(HOPPER, "paged_decode", shape.queries_a_head, shape.head_dim, dtype.itemsize)


_SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "key_scales", "value_scales", "out"), "*bf16:16")
    | dict.fromkeys(("page_tables", "plan", "counters"), "*i32:16")
    | dict.fromkeys(("partials", "lses", "sinks"), "*fp32:16")
    | {"scale_log2": "fp32", "cap_log2": "fp32", "query_stride": "i32:16", "table_stride": "i32"}
)
_MAX_REGISTERS = 168
"""With them a processor has 3 programs, with 128 it has 4: which of the two differs with Triton's version."""
_SPILLED_BYTES = {"Qwen3-14B, merges": 24}
"""With Triton 3.6, of a thread."""
_CASES = {
    f"{model}{', merges' if merges else ''}": CompileCase(
        label=f"{model}{', merges' if merges else ''}",
        kernel=attend,
        signature=_SIGNATURE,
        constants={"HEAD_DIM": shape.head_dim, "PAGE_SIZE": 16, "HAS_SCALES": False}
        | constants_of(DecodeLayout(256, shape.num_heads, shape.num_kv_heads, 528, True, merges)),
        launch=_launch_of(shape, torch.bfloat16),
        max_registers=_MAX_REGISTERS,
        max_spilled_bytes=_SPILLED_BYTES.get(f"{model}{', merges' if merges else ''}", 0),
    )
    for model, shape in MODEL_SHAPES.items()
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
        with_codes(_CASES[model], {"HAS_SCALES": True}, max_registers=232, max_spilled_bytes=8)
        for model in ("GPT-2 124M", "Qwen3-0.6B")
    ),
    *(
        in_float32(_CASES[model], launch=_launch_of(MODEL_SHAPES[model], torch.float32), max_registers=192)
        for model in ("GPT-2 124M", "Qwen3-0.6B", "Llama-3-8B")
    ),
    in_float32(_MERGE_CASES[0]),
    with_options(_CASES["Qwen3-0.6B, merges"], HAS_CAP=True, HAS_SINKS=True),
)
