"""The specializations of attention with fixed launches that are compiled in tests."""

from dataclasses import replace

import torch

from kernels.gpu.launch_table import HOPPER, Launch, launch_on
from kernels.gpu.paged_prefill import attend
from kernels.gpu.split_decode import merge
from kernels.plans.split_work import SPLIT_KEYS
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes, with_options
from tests.kernels.gpu.cases.model_shapes import HEADS_OF_256, HEADS_OF_512, MODEL_SHAPES, WIDE_SHAPES, ModelShape
from tests.kernels.gpu.cases.paged_prefill import SIGNATURE


def _launch_of(shape: ModelShape, cached: torch.dtype) -> Launch:
    return launch_on(HOPPER, "split_attention", shape.queries_a_head, shape.head_dim, cached.itemsize)


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
            "SPLIT": SPLIT_KEYS,
        },
        launch=_launch_of(shape, torch.bfloat16),
        max_registers=255,
        has_wgmma=shape is not HEADS_OF_512,
    )
    for model, shape in (MODEL_SHAPES | WIDE_SHAPES).items()
}
_MERGE = CompileCase(
    label="merge, heads of 128",
    kernel=merge,
    signature={"first_parts": "*i32", "out": "*bf16"} | dict.fromkeys(("partials", "maxima", "sums"), "*fp32:16"),
    constants={"NUM_HEADS": 32, "HEAD_DIM": 128},
    launch=launch_on(HOPPER, "split_merge", 128),
    max_registers=64,
)
COMPILE_CASES = (
    *_CASES.values(),
    with_options(_CASES["Qwen3-0.6B"], 255, WINDOW=128, HAS_CAP=True, HAS_SINKS=True),
    with_codes(
        _CASES["Qwen3-0.6B"],
        {"HAS_SCALES": True},
        launch=_launch_of(MODEL_SHAPES["Qwen3-0.6B"], torch.float8_e4m3fn),
        max_fused=96,  # in logarithms of scales, of which each is the same code
    ),
    *(
        in_float32(_CASES[model], launch=_launch_of(shape, torch.float32), has_wgmma=False, max_spilled_bytes=spilled)
        for model, shape, spilled in (
            ("GPT-2 124M", MODEL_SHAPES["GPT-2 124M"], 0),
            ("Qwen3-0.6B", MODEL_SHAPES["Qwen3-0.6B"], 104),
            ("heads of 256", HEADS_OF_256, 120),
        )
    ),
    _MERGE,
    replace(
        _MERGE,
        label="merge, heads of 256",
        constants={"NUM_HEADS": 16, "HEAD_DIM": 256},
        launch=launch_on(HOPPER, "split_merge", 256),
    ),
)
