"""The specializations of attention to latents that are compiled in tests."""

from dataclasses import replace

from kernels.gpu.latent_tiles import attend, merge
from kernels.gpu.launch_table import HOPPER, launch_on
from kernels.plans.split_work import SPLIT_KEYS
from tests.kernels.gpu.cases.compile_case import CompileCase

SHAPES = {
    "DeepSeek-V2-Lite": (16, 512, 64),
    "DeepSeek V3": (128, 512, 64),
    "GLM-4.7-Flash": (20, 512, 64),
    "MiniCPM3": (40, 256, 32),
    "Mistral 4": (32, 256, 64),
}
"""Heads, values of a latent that are values, too, and rotated ones."""

_ELEMENTS = ("plain", "rotated", "latents", "rotated_latents", "scales", "out")
_SIZES = ("plain_tokens", "rotated_tokens", "out_tokens", "table_stride", "num_blocks", "tile_rows")
_SIGNATURE = (
    dict.fromkeys(_ELEMENTS, "*bf16:16")
    | dict.fromkeys(("page_tables", "pieces"), "*i32:16")
    | dict.fromkeys(("partials", "maxima", "sums"), "*fp32:16")
    | {"scale_log2": "fp32"}
    | dict.fromkeys(_SIZES, "i32")
)


def cases_of(operation: str, split_keys: int = 0) -> dict[str, CompileCase]:
    """Returns the cases of models in 16 bits, by their names."""
    return {
        model: CompileCase(
            label=f"{model}, fixed launches" if split_keys else model,
            kernel=attend,
            signature=_SIGNATURE,
            constants={
                "NUM_HEADS": num_heads,
                "RANK": rank,
                "ROTATED": num_rotated,
                "SIZE": rank + num_rotated,
                "ROTATED_SIZE": rank + num_rotated,
                "ROTATED_AT": rank,
                "PAGE_SIZE": 16,
                "HAS_SCALES": False,
                "SPLIT": split_keys,
            },
            launch=launch_on(HOPPER, operation, num_heads, rank, num_rotated, 2),
            max_registers=255,
            has_wgmma=launch_on(HOPPER, operation, num_heads, rank, num_rotated, 2)["BLOCK_M"] >= 64,
        )
        for model, (num_heads, rank, num_rotated) in SHAPES.items()
    }


def over_fp8(case: CompileCase, **changes: object) -> CompileCase:
    """Returns the case over a cache of codes, in which the rotated values are bfloat16."""
    rank, num_rotated = case.constants["RANK"], case.constants["ROTATED"]
    sizes = {"SIZE": rank + 2 * num_rotated, "ROTATED_SIZE": rank // 2 + num_rotated, "ROTATED_AT": rank // 2}
    constants = {**case.constants, **sizes, "HAS_SCALES": True}
    signature = {**case.signature, "latents": "*fp8e4nv:16"}
    return replace(case, label=f"{case.label}, fp8 cache", constants=constants, signature=signature, **changes)


def in_float32(case: CompileCase, operation: str) -> CompileCase:
    signature = {name: kind.replace("bf16", "fp32") for name, kind in case.signature.items()}
    sizes = tuple(case.constants[name] for name in ("NUM_HEADS", "RANK", "ROTATED"))
    launch = launch_on(HOPPER, operation, *sizes, 4)
    changes = {"signature": signature, "launch": launch, "max_spilled_bytes": 1400}
    return replace(case, label=f"{case.label}, float32", **changes)


def merge_case(rank: int) -> CompileCase:
    return CompileCase(
        label=f"merge, {rank}",
        kernel=merge,
        signature=dict.fromkeys(("partials", "maxima", "sums"), "*fp32:16")
        | {"cut": "*i32:16", "out": "*bf16:16", "out_tokens": "i32", "tile_rows": "i32"},
        constants={"NUM_HEADS": 16, "RANK": rank},
        launch=launch_on(HOPPER, "latent_merge", rank),
        max_registers=80,
    )


_CASES, _FIXED = cases_of("latent_decode"), cases_of("split_latents", SPLIT_KEYS)
COMPILE_CASES = (
    *_CASES.values(),
    *(_FIXED[model] for model in ("GLM-4.7-Flash", "MiniCPM3", "Mistral 4")),
    over_fp8(_CASES["GLM-4.7-Flash"], launch=launch_on(HOPPER, "latent_decode", 20, 512, 64, 1)),
    over_fp8(
        _FIXED["GLM-4.7-Flash"],
        launch=launch_on(HOPPER, "split_latents", 20, 512, 64, 1),
        max_fused=24,  # in logarithms of scales, of which each is the same code
    ),
    in_float32(_CASES["GLM-4.7-Flash"], "latent_decode"),
    in_float32(_FIXED["GLM-4.7-Flash"], "split_latents"),
    merge_case(512),
    merge_case(256),
)
