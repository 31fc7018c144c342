"""The specializations of `paged_prefill` that are compiled in tests."""

import torch

from kernels.gpu.launch_table import HOPPER, Launch, launch_on
from kernels.gpu.paged_prefill import attend
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes, with_options
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape


def _launch_of(shape: ModelShape, dtype: torch.dtype) -> Launch:
    return launch_on(HOPPER, "paged_prefill", shape.queries_a_head, shape.head_dim, dtype.itemsize)


_SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "key_scales", "value_scales", "out"), "*bf16:16")
    | dict.fromkeys(("page_tables", "context_lens", "tiles"), "*i32:16")
    | {"sinks": "*fp32:16", "scale_log2": "fp32", "cap_log2": "fp32", "query_stride": "i32:16", "table_stride": "i32"}
)
_CASES = {
    model: CompileCase(
        label=model,
        kernel=attend,
        signature=_SIGNATURE,
        constants={
            "QUERIES": shape.queries_a_head,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "PAGE_SIZE": 16,
            "HAS_SCALES": False,
            "WINDOW": 0,
            "HAS_CAP": False,
            "HAS_SINKS": False,
        },
        launch=_launch_of(shape, torch.bfloat16),
        max_registers=168 if shape.head_dim == 64 else 224,
        has_wgmma=True,
    )
    for model, shape in MODEL_SHAPES.items()
}
COMPILE_CASES = (
    *_CASES.values(),
    with_options(_CASES["Qwen3-0.6B"], WINDOW=128, HAS_CAP=True, HAS_SINKS=True),
    with_codes(_CASES["Qwen3-0.6B"], {"HAS_SCALES": True}, max_registers=255, max_spilled_bytes=32),
    *(
        in_float32(
            _CASES[model],
            launch=_launch_of(MODEL_SHAPES[model], torch.float32),
            max_registers=255,
            max_spilled_bytes=176,  # with Triton 3.6
        )
        for model in ("GPT-2 124M", "Qwen3-0.6B")
    ),
)
