"""The specializations of the kernels of long prompts that are compiled in tests."""

from dataclasses import replace

from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.long_prefill import attend_gathered, gather
from kernels.plans.prefill_tiles import LONG_TILE_TOKENS
from tests.kernels.gpu.cases.compile_case import CompileCase, with_options
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

_INTEGERS = dict.fromkeys(("query_lens", "context_lens", "tiles", "page_tables", "last_keys"), "*i32:16")
_SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "out", "gathered_keys", "gathered_values"), "*bf16:16")
    | _INTEGERS
    | {"sinks": "*fp32:16", "scale_log2": "fp32", "cap_log2": "fp32", "query_stride": "i32:16"}
    | dict.fromkeys(("num_tokens", "row_keys", "num_keys", "table_stride"), "i32")
)
_CASES = {
    model: CompileCase(
        label=model,
        kernel=attend_gathered,
        signature={name: kind for name, kind in _SIGNATURE.items() if name in attend_gathered.arg_names},
        constants={
            "QUERIES": shape.queries_a_head,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "HAS_CAP": False,
            "HAS_SINKS": False,
            "HAS_LAST_KEYS": False,
            "BLOCK_M": LONG_TILE_TOKENS,
        },
        launch=launch_on(HOPPER, "long_prefill", shape.head_dim, 0),
        max_registers=168,
        has_wgmma=True,
        max_loop_stalls=0,
    )
    for model, shape in MODEL_SHAPES.items()
    if model in ("GPT-2 124M", "Qwen3-0.6B", "Llama-3-8B")
}
COMPILE_CASES = (
    *_CASES.values(),
    with_options(_CASES["Qwen3-0.6B"], 168, HAS_CAP=True, HAS_SINKS=True),
    replace(
        with_options(_CASES["Qwen3-0.6B"], 255, HAS_LAST_KEYS=True), launch=launch_on(HOPPER, "long_prefill", 128, 1)
    ),
    CompileCase(
        "gather",
        gather,
        {name: kind for name, kind in _SIGNATURE.items() if name in gather.arg_names},
        {"NUM_KV_HEADS": 8, "HEAD_DIM": 128, "PAGE_SIZE": 16, "BLOCK_N": 128},
        128,
        launch_on(HOPPER, "gather_keys"),
    ),
)
