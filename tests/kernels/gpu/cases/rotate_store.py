"""The specializations of `rotate_store` that are compiled in tests."""

import torch

from kernels.arguments.paged_kv import MAX_CODES
from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.rotate_store import rotate_store_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

_WEIGHTS = ("query_weight_ptr", "key_weight_ptr", "value_weight_ptr")
_POINTERS = ("heads_ptr", "keys", "values", "key_scales", "value_scales", *_WEIGHTS)
_CASES = tuple(
    CompileCase(
        label=model,
        kernel=rotate_store_kernel,
        signature=dict.fromkeys(_POINTERS, "*bf16:16")
        | {"cos_ptr": f"*{table}:16", "sin_ptr": f"*{table}:16", "positions_ptr": "*i32:16", "slots_ptr": "*i64:16"}
        | {"eps": "fp32"},
        constants={
            "NUM_HEADS": shape.num_heads,
            "NUM_KV_HEADS": shape.num_kv_heads,
            "HEAD_DIM": shape.head_dim,
            "X": (shape.head_dim + 1) // 2,
            "QUERY_ROW": 0,
            "HAS_ROPE": table == "fp32",
            "HAS_NORM": model.startswith("Qwen3"),
            "HAS_VALUE_NORM": False,
            "IN_PLACE": False,
            "MAX_CODE": 0.0,
        },
        launch=launch_on(HOPPER, "rotate_store", shape.num_heads, shape.num_kv_heads, shape.head_dim),
        max_registers=64,
    )
    for model, shape in MODEL_SHAPES.items()
    for table in ["bf16" if model.startswith("GPT-2") else "fp32"]
)
COMPILE_CASES = (
    *_CASES,
    with_codes(_CASES[1], {"MAX_CODE": MAX_CODES[torch.float8_e4m3fn]}),
    *(in_float32(case) for case in _CASES[:2]),
)
