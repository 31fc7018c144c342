"""The specializations of `few_rows_linear` that are compiled in tests: the four products of a layer of Qwen3 0.6B."""

from dataclasses import replace

from kernels.gpu.few_rows_linear import multiply_few
from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.compile_case import CompileCase, in_float32, with_codes

_FLOATS = ("x", "norm_weight", "weight", "out", "tokens", "keys", "values", "key_scales", "value_scales")
_SIGNATURE: dict[str, str] = dict.fromkeys((*_FLOATS, "bias", "query_weight", "key_weight"), "*bf16:16")
_SIGNATURE |= {"sums": "*fp32:16", "counters": "*i32:16", "cosines": "*fp32:16", "sines": "*fp32:16"}
_SIGNATURE |= {"positions": "*i32:16", "slots": "*i64:16", "head_eps": "fp32", "norm_eps": "fp32", "num_tokens": "i32"}
_NONE = {"NUM_KV_HEADS": 0, "QUERY_ROW": 0, "HAS_HEAD_NORM": False, "MAX_CODE": 0.0, "HAS_BIAS": False}
_HEADS = {"NUM_KV_HEADS": 8, "HAS_HEAD_NORM": True}


def make_case(
    label: str, then: str, sizes: tuple[int, int], parts: tuple[int, int], **constants: object
) -> CompileCase:
    """`sizes`: inputs and outputs; `parts`: their number, and blocks of each."""
    names = dict(zip(("NUM_INPUTS", "NUM_OUTPUTS", "NUM_PARTS", "PART_BLOCKS"), (*sizes, *parts), strict=True))
    own = {"THEN": then, "HAS_NORM": then != "add", "IS_DEPENDENT": False, **names, **constants}
    launch = launch_on(HOPPER, "few_rows_linear", 128 if then == "heads" else 0, 2)
    return CompileCase(
        label, multiply_few, _SIGNATURE, _NONE | own, 168, launch, max_shared_bytes=113 << 10, max_loop_stalls=0
    )


_CASES = (
    make_case("heads", "heads", (1024, 4096), (8, 2), **_HEADS),
    make_case("added", "add", (2048, 1024), (16, 1)),
    make_case("gated", "silu", (1024, 6144), (3, 3)),
    make_case("one part", "add", (3072, 65536), (1, 24)),
    replace(
        make_case("best token", "best", (1024, 151936), (1, 8), HAS_NORM=False),
        signature=_SIGNATURE | {"out": "*fp32:16", "tokens": "*i32:16"},
    ),
)
COMPILE_CASES = (
    *_CASES,
    with_codes(_CASES[0], {"MAX_CODE": 448.0}),
    *(
        replace(case, label=f"{case.label}, dependent", constants={**case.constants, "IS_DEPENDENT": True})
        for case in _CASES[:3]
    ),
    *(
        in_float32(case, launch=launch_on(HOPPER, "few_rows_linear", dim, 4), max_registers=255)
        for case, dim in zip(_CASES[:3], (128, 0, 0), strict=True)
    ),
)
