"""The kernels as a Hopper GPU would run them: compiled with no GPU, for a small model of each kind.

`python -m tests.kernels.gpu.cases.compile_report` compiles them for larger models too.
"""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from kernels.gpu.triton_kernels import FIXED, list_operations
from tests.kernels.gpu.cases.compile_case import CompileCase

TIMEOUT_S = 600
FILES = tuple(dict.fromkeys((*list_operations(), *FIXED.values())))
LEFT_OUT = (
    *("Llama-3-8B", "Qwen3-14B", "128256", "50257", "second kernel, ", "GPT-2 124M, (float32|second|merges|fp8)"),
    *("151936, float32", "update, float32", "tanh, float32", "exact, float32", "query, key, value"),
    *(
        "planes_linear: (Q[458]_[01]|Q[23]_K|MXFP4|IQ4_XS|I[48]_.*|F8_32|F8_64)$",
        "look_up_planes: (?!Q6_K)",
    ),
    *("paged_decode: Qwen3-0.6B$", "paged_prefill: GPT-2 124M$", "rotate_store: Qwen3-0.6B$"),
    *("Falcon-H1", "Nemotron-H", "LFM2", "Granite-4.0-H, |(carry|prepare|decode|Qwen3-Next), float32"),
    *("paged_decode: heads of 256", "heads of 256, float32", "paged_decode: heads of 512$"),
    *("split_decode: (GPT-2 124M|heads of 512|merge, heads of 128)$", "plain_linear: sums of parts"),
    "few_rows_linear: (heads|added|one part|gated, float32|added, float32|heads, dependent|gated, dependent)$",
    *("latent_decode: (DeepSeek|Mistral 4|M.*fixed|merge, 256|.*(fp8|float32))", "store_latents: (?!.*fp8)"),
    "latent_prefill: (?!Mistral 4)",
    *("scaled_linear: .*(blocks of 64|fp32)", "quantize_rows: (4096|.*float32)"),
)
"""What differs in the shape alone from a case that is compiled, or has both of two features that others have alone."""


@cache
def make_report() -> dict[str, list[dict[str, Any]]]:
    """Returns the lines of each operation; in a process of its own, for here kernels are interpreted."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.kernels.gpu.cases.compile_report", "--jobs", "1", "--only-checks", "--json"]
    command += [word for text in LEFT_OUT for word in ("--skip", text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert done.stdout, done.stderr
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in FILES}
    for line in json.loads(done.stdout):
        lines[line["name"]].append(line)
    return lines


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("name", FILES)
def test_compiles_for_hopper_within_its_bounds(name: str) -> None:
    lines = make_report()[name]
    assert lines, f"tests/kernels/gpu/cases/{name}.py lists no COMPILE_CASES"
    assert len({line["label"] for line in lines}) == len(lines)
    for line in lines:
        assert not line["complaints"], f"{line['label']}: {line['complaints']} {line['compiled']}"


@pytest.mark.parametrize(
    ("compiled", "complaint"),
    [
        ((64, 0, 1000, 1, 0), None),
        ((65, 0, 1000, 1, 0), "65 registers, of 64"),
        ((64, 8, 1000, 1, 0), None),
        ((64, 9, 1000, 1, 0), "spills 9 bytes"),
        ((64, 0, 233_000, 1, 0), "233000 bytes of shared memory"),
        ((64, 0, 1000, 0, 9), "no wgmma"),
        ((64, 0, 1000, 1, 0, 4), "4 instructions of"),
    ],
)
def test_what_is_out_of_bounds_is_complained_of(compiled: tuple[int, ...], complaint: str | None) -> None:
    report = pytest.importorskip("tests.kernels.gpu.cases.compile_report")
    case = CompileCase("a shape", None, {}, {}, 64, has_wgmma=True, max_spilled_bytes=8, max_loop_stalls=3)
    first, loop_stalls = compiled[:5], (*compiled[5:], 3)[0]
    complaints = report.check(case, report.Compiled(*first, 9, 0, loop_stalls))
    assert len(complaints) == (complaint is not None)
    assert all(found.startswith(complaint) for found in complaints)


def test_instructions_are_counted_in_all_and_in_the_first_innermost_loop() -> None:
    """Two loops within a third one; no-operations, and the branch to itself at the end, are not counted as a loop."""
    report = pytest.importorskip("tests.kernels.gpu.cases.compile_report")
    listing = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;        /* 0x00000a00ff017b82 */
        /*0010*/                   LDG.E R1, desc[UR4][R2.64] ;
        /*0020*/              @P0  BRA 0x10 ;
        /*0030*/              @!P2 LDG.E.64 R2, desc[UR4][R2.64] ;
        /*0040*/                   HMMA.16816.F32 R2, R2, R3, R2 ;
        /*0044*/                   F2F.BF16.F32 R2, R3 ;
        /*0048*/                   F2FP.BF16.F32.PACK_AB R2, R3, R3 ;
        /*004c*/                   LDGSTS.E [R2], desc[UR4][R2.64] ;
        /*0050*/             @!P1  BRA P2, 0x30 ;
        /*0060*/              @P3  BRA 0x10 ;
        /*0070*/              @P4  BRA 0x90 ;
        /*0080*/                   NOP ;
        /*0090*/                   EXIT ;
        /*00a0*/                   BRA 0xa0 ;
    """
    assert report.count_instructions(listing) == (13, 2, 2)
