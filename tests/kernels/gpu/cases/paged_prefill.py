"""The specializations of `paged_prefill` that are compiled in tests."""

from dataclasses import replace

import torch

from kernels.gpu.launch_table import HOPPER, Launch, launch_on
from kernels.gpu.paged_prefill import attend
from tests.kernels.gpu.cases.compile_case import (
    MAX_ADA_BYTES,
    MAX_SHARED_BYTES,
    CompileCase,
    in_float32,
    with_codes,
    with_options,
)
from tests.kernels.gpu.cases.long_prefill import COMPILE_CASES as LONG_CASES
from tests.kernels.gpu.cases.model_shapes import HEADS_OF_256, HEADS_OF_512, MODEL_SHAPES, WIDE_SHAPES, ModelShape


def _launch_of(shape: ModelShape, cached: torch.dtype) -> Launch:
    return launch_on(HOPPER, "paged_prefill", shape.queries_a_head, shape.head_dim, cached.itemsize)


SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "key_scales", "value_scales", "out"), "*bf16:16")
    | dict.fromkeys(("page_tables", "context_lens", "tiles", "last_keys"), "*i32:16")
    | dict.fromkeys(("partials", "maxima", "sums", "sinks"), "*fp32:16")
    | {"scale_log2": "fp32", "cap_log2": "fp32", "query_stride": "i32:16", "table_stride": "i32"}
)
_CASES = {
    model: CompileCase(
        label=model,
        kernel=attend,
        signature=SIGNATURE,
        constants={
            "QUERIES": shape.queries_a_head,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "PAGE_SIZE": 16,
            "HAS_SCALES": False,
            "WINDOW": 0,
            "HAS_CAP": False,
            "HAS_SINKS": False,
            "HAS_LAST_KEYS": False,
            "SPLIT": 0,
        },
        launch=_launch_of(shape, torch.bfloat16),
        max_registers=168 if shape.head_dim == 64 else 224,
        has_wgmma=shape is not HEADS_OF_512,
        # With 2 stages page numbers are not read ahead.
        max_loop_stalls=None if shape is HEADS_OF_512 else 0 if shape.head_dim == 64 else 40,
        max_shared_bytes=MAX_ADA_BYTES if model in WIDE_SHAPES else MAX_SHARED_BYTES,
    )
    for model, shape in (MODEL_SHAPES | WIDE_SHAPES).items()
}
COMPILE_CASES = (
    *_CASES.values(),
    *(replace(case, label=f"long prompts, {case.label}") for case in LONG_CASES),
    with_options(_CASES["Qwen3-0.6B"], 255, WINDOW=128, HAS_CAP=True, HAS_SINKS=True),
    with_options(_CASES["heads of 256"], 255, WINDOW=1024, HAS_LAST_KEYS=True),
    *(
        with_codes(
            _CASES[model],
            {"HAS_SCALES": True},
            launch=_launch_of(MODEL_SHAPES[model], torch.float8_e4m3fn),
            max_registers=248,
        )
        for model in ("GPT-2 124M", "Qwen3-0.6B")
    ),
    with_codes(
        _CASES["heads of 512"],
        {"HAS_SCALES": True},
        launch=_launch_of(HEADS_OF_512, torch.float8_e4m3fn),
        max_registers=248,
    ),
    *(
        in_float32(_CASES[model], launch=_launch_of(MODEL_SHAPES[model], torch.float32), max_registers=255, **more)
        for model, more in (
            ("GPT-2 124M", {}),
            ("Qwen3-0.6B", {"max_spilled_bytes": 176, "max_loop_stalls": 1}),  # with Triton 3.6
        )
    ),
    in_float32(
        _CASES["heads of 256"],
        launch=_launch_of(HEADS_OF_256, torch.float32),
        max_registers=255,
        max_spilled_bytes=8,  # with Triton 3.6
        has_wgmma=False,
        max_loop_stalls=None,
    ),
)
