"""The specializations of `store_latents` that are compiled in tests."""

from dataclasses import replace

import torch

from kernels.arguments.paged_kv import MAX_CODES
from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.gpu.store_latents import store_latents_kernel
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32
from tests.kernels.gpu.cases.latent_decode import SHAPES

_ELEMENTS = ("query", "latent", "weight", "cached", "cached_rotated", "scales", "plain_out")
_PLAIN = {"GLM-4.7-Flash": 192, "MiniCPM3": 64}
_CASES = {
    model: CompileCase(
        label=model,
        kernel=store_latents_kernel,
        signature=dict.fromkeys(_ELEMENTS, "*bf16:16")
        | dict.fromkeys(("cosines", "sines", "growth"), "*fp32:16")
        | {"positions": "*i32:16", "slots": "*i64:16", "ends": "*i32", "rotated_out": "*bf16"}
        | {"eps": "fp32", "num_tokens": "i32"},
        constants={
            "NUM_HEADS": num_heads,
            "PLAIN": _PLAIN[model],
            "RANK": rank,
            "HALF": num_rotated // 2,
            "SIZE": rank + num_rotated,
            "ROTATED_SIZE": rank + num_rotated,
            "ROTATED_AT": rank,
            "QUERY_ROW": 0,
            "HAS_GROWTH": False,
            "MAX_CODE": 0.0,
        },
        launch=launch_on(HOPPER, "store_latents", num_heads, _PLAIN[model], rank, num_rotated),
        max_registers=40,
    )
    for model, (num_heads, rank, num_rotated) in SHAPES.items()
    if model in _PLAIN
}
_GLM = _CASES["GLM-4.7-Flash"]
COMPILE_CASES = (
    *_CASES.values(),
    in_float32(_GLM),
    replace(
        _GLM,
        label="GLM-4.7-Flash, fp8 cache",
        signature={**_GLM.signature, "cached": "*fp8e4nv:16"},
        constants={
            **_GLM.constants,
            "SIZE": 512 + 2 * 64,
            "ROTATED_SIZE": 256 + 64,
            "ROTATED_AT": 256,
            "HAS_GROWTH": True,
            "MAX_CODE": MAX_CODES[torch.float8_e4m3fn],
        },
    ),
)
