"""The specializations of `encoder_attention` that are compiled in tests."""

from kernels.gpu.encoder_attention import attend_whole
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_options

_SIGNATURE = (
    dict.fromkeys(("query", "keys", "values", "out"), "*bf16:16")
    | dict.fromkeys(("first_token", "first_tile"), "*i32:16")
    | dict.fromkeys(("query_stride", "key_stride", "value_stride"), "i32:16")
    | {"biases": "*fp32:16", "scale_log2": "fp32", "num_rows": "i32"}
)
_SHAPES = {"MiniLM": (1, 12, 32, 128), "ModernBERT": (1, 12, 64, 168), "EmbeddingGemma": (3, 1, 256, 224)}
"""Query heads per key/value head, key/value heads, head dimension, and the most registers."""

_CASES = {
    model: CompileCase(
        label=model,
        kernel=attend_whole,
        signature=_SIGNATURE,
        constants={
            "QUERIES": queries,
            "NUM_KV_HEADS": num_heads,
            "HEAD_DIM": head_dim,
            "WINDOW": 0,
            "REACH": 0,
            "HAS_BIASES": False,
        },
        launch=launch_on(HOPPER, "paged_prefill", queries, head_dim, 2),
        max_registers=max_registers,
        has_wgmma=True,
    )
    for model, (queries, num_heads, head_dim, max_registers) in _SHAPES.items()
}
COMPILE_CASES = (
    *_CASES.values(),
    with_options(_CASES["ModernBERT"], 168, WINDOW=65),
    with_options(_CASES["ModernBERT"], 168, REACH=128, HAS_BIASES=True),
    in_float32(_CASES["MiniLM"], launch=launch_on(HOPPER, "paged_prefill", 1, 32, 4), max_registers=255),
)
