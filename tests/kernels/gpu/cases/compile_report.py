"""Compiles the Triton kernels for Hopper GPUs, which needs none, and checks what the compiler made of them.

python -m tests.kernels.gpu.cases.compile_report [NAME ...] [--jobs N] [--skip REGEX] [--only-checks] [--json]

Results are kept in a directory under the system's temporary one: a kernel is compiled again when its source, the
specialization or Triton has changed.
"""

import argparse
import hashlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from json import dumps, loads
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.cpu.build import cache_dir
from kernels.gpu.occupancy import count_side_by_side
from kernels.gpu.triton_kernels import FIXED, list_operations
from tests.kernels.gpu.cases.compile_case import CompileCase

TARGET = GPUTarget("cuda", 90, 32)
TOOLS = Path(nvidia.__path__[0]) / "bin"
ALIGNED = ":16"
OPTIONS = ("num_warps", "num_stages", "maxnreg", "num_ctas", "enable_fp_fusion")
"""Launch options that are not parameters of the kernel."""
COLUMNS = (
    "registers",
    "spilled_bytes",
    "shared_bytes",
    "num_wgmma",
    "num_mma",
    "num_instructions",
    "loop_instructions",
    "loop_stalls",
)
DEFAULT_NUM_WARPS = 4
FILES = tuple(dict.fromkeys((*list_operations(), *FIXED.values())))
"""The files of kernels that have cases."""
PRODUCTS = {"HMMA", "HGMMA", "QGMMA"}
STALLS = {"LDG", "F2F", "LDL", "STL"}
"""What a loop of products should not have: loads that it waits for, conversions of a sixteenth of the rate, spills."""


@dataclass(frozen=True)
class Compiled:
    """What a kernel needs of the GPU; `spilled_bytes` are the stack's, where registers are spilled to.

    `num_instructions` are the machine instructions of a warp, `loop_instructions` those of its first innermost loop,
    `loop_stalls` those of `STALLS` in all innermost loops with products; `None` if the machine code was not listed.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    num_wgmma: int
    num_mma: int
    num_instructions: int | None
    loop_instructions: int | None
    loop_stalls: int | None
    num_fused: int = 0
    """Products fused with sums."""
    num_warps: int = DEFAULT_NUM_WARPS
    """More than the launch has if the compiler specializes warps."""


@dataclass(frozen=True)
class Line:
    """One case of the report."""

    name: str
    label: str
    compiled: Compiled
    num_programs: int
    """That a processor of a Hopper GPU runs side by side."""
    complaints: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", default=FILES, help="operations (default: all)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="REGEX", help="leave out cases with it in NAME: LABEL"
    )
    parser.add_argument(
        "--only-checks", action="store_true", help="do not count instructions, which takes half of the time"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document in place of the table")
    options = parser.parse_args()
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: kernels are not compiled then; unset it")
    lines = make_report(options.names, options.jobs, options.skip, counts=not options.only_checks)
    print(dumps([asdict(line) for line in lines], indent=1) if options.json else format_table(lines))
    return 1 if any(line.complaints for line in lines) else 0


def make_report(names: Sequence[str], jobs: int, skip: Sequence[str] = (), *, counts: bool = True) -> list[Line]:
    """Returns a line for each case of these operations, after those that are new have been compiled.

    Cases in whose name and label one of `skip` is found are left out. Without `counts` no instructions are counted.
    """
    places = [
        (name, index)
        for name in names
        for index, case in enumerate(cases_of(name))
        if not any(re.search(pattern, f"{name}: {case.label}") for pattern in skip)
    ]
    new = [place for place in places if not _cache_path(_case_at(place), counts).exists()]
    if jobs > 1 and new:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            list(pool.map(_compile_at, new, repeat(counts)))
    lines: list[Line] = []
    for place in places:
        case = _case_at(place)
        compiled = compile_case(case, counts)
        num_programs = count_side_by_side(compiled.registers, compiled.shared_bytes, compiled.num_warps)
        lines.append(Line(place[0], case.label, compiled, num_programs, check(case, compiled)))
    return lines


def cases_of(name: str) -> Sequence[CompileCase]:
    return importlib.import_module(f"tests.kernels.gpu.cases.{name}").COMPILE_CASES


def check(case: CompileCase, compiled: Compiled) -> list[str]:
    """Returns what is not as it must be."""
    complaints: list[str] = []
    if compiled.spilled_bytes > case.max_spilled_bytes:
        complaints.append(f"spills {compiled.spilled_bytes} bytes")
    if compiled.registers > case.max_registers:
        complaints.append(f"{compiled.registers} registers, of {case.max_registers}")
    if compiled.shared_bytes > case.max_shared_bytes:
        complaints.append(f"{compiled.shared_bytes} bytes of shared memory, of {case.max_shared_bytes}")
    if case.has_wgmma and not compiled.num_wgmma:
        complaints.append("no wgmma")
    if compiled.num_fused > case.max_fused and not case.launch.get("enable_fp_fusion", True):
        complaints.append(f"{compiled.num_fused} products fused with sums")
    if case.max_loop_stalls is not None and (compiled.loop_stalls or 0) > case.max_loop_stalls:
        complaints.append(f"{compiled.loop_stalls} instructions of {sorted(STALLS)} in its loops")
    return complaints


def compile_case(case: CompileCase, counts: bool) -> Compiled:
    """Returns what the compiler made of it, now or earlier."""
    counts |= case.max_loop_stalls is not None
    path = _cache_path(case, counts)
    if path.exists():
        return Compiled(**loads(path.read_text(encoding="utf-8")))
    kernel = case.kernel
    types = {name: case.signature.get(name, "constexpr").removesuffix(ALIGNED) for name in kernel.arg_names}
    attributes = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if case.signature.get(name, "").endswith(ALIGNED)
    }
    options = {name: value for name, value in case.launch.items() if name in OPTIONS}
    constants = {name: value for name, value in {**case.constants, **case.launch}.items() if name not in OPTIONS}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=TARGET, options=options)
    num_wgmma, num_mma = (len(re.findall(what, made.asm["ptx"])) for what in (r"wgmma\.mma_async", r"\bmma\.sync"))
    listing = _read_machine_code(made.asm["cubin"], counts)
    registers, stack_bytes = map(int, re.findall(r"\b(?:REG|STACK):(\d+)", listing))
    numbers = count_instructions(listing) if counts else (None, None, None)
    num_fused = len(re.findall(r"\bfma\.", made.asm["ptx"]))
    needs = registers, stack_bytes, made.metadata.shared
    compiled = Compiled(*needs, num_wgmma, num_mma, *numbers, num_fused, made.metadata.num_warps)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(dumps(asdict(compiled)), encoding="utf-8")
    partial.replace(path)
    return compiled


def format_table(lines: Sequence[Line]) -> str:
    rows = [["", *(name.replace("_", " ") for name in COLUMNS), "programs", ""]]
    for line in lines:
        numbers = ["" if (value := getattr(line.compiled, name)) is None else str(value) for name in COLUMNS]
        rows.append([f"{line.name}: {line.label}", *numbers, str(line.num_programs), "; ".join(line.complaints)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:]), row[-1]]).rstrip() for row in rows
    )


def _case_at(place: tuple[str, int]) -> CompileCase:
    """Finds the case in another process: a kernel cannot be pickled."""
    name, index = place
    return cases_of(name)[index]


def _compile_at(place: tuple[str, int], counts: bool) -> None:
    compile_case(_case_at(place), counts)


def count_instructions(sass: str) -> tuple[int, int, int]:
    """Returns how many instructions a listing of machine code has, how many its first innermost loop, and how many of
    `STALLS` its innermost loops with products.

    A loop is what lies between a branch and its target before it.
    """
    lines = re.findall(r"^\s*/\*([0-9a-f]+)\*/\s+([^;]+);", sass, re.M)
    places = {int(address, 16): text for address, text in lines if "NOP" not in text}
    branches = ((place, re.search(r"\bBRA\b.*?0x([0-9a-f]+)", text)) for place, text in places.items())
    loops = [(int(found[1], 16), place) for place, found in branches if found and int(found[1], 16) < place]
    innermost = sorted(loop for loop in loops if not any(loop[0] <= a and b < loop[1] for a, b in loops))
    bodies = [
        [
            re.sub(r"^@!?U?P\w+\s+", "", text).split(".")[0].split()[0]
            for place, text in places.items()
            if a <= place <= b
        ]
        for a, b in innermost
    ]
    stalls = sum(name in STALLS for body in bodies if PRODUCTS.intersection(body) for name in body)
    return len(places), len(bodies[0]) if bodies else 0, stalls


def _read_machine_code(cubin: bytes, has_instructions: bool) -> str:
    """Returns what the machine code needs, and its instructions if they are wanted."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "-res-usage", *(["-sass"] if has_instructions else []), file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _cache_path(case: CompileCase, counts: bool) -> Path:
    parts: list[Any] = [triton.__version__, counts, case.kernel.cache_key, sorted(case.signature.items())]
    parts += [sorted(case.constants.items()), sorted(case.launch.items()), Path(__file__).read_text("utf-8")]
    directory = cache_dir() / "compile-report"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


if __name__ == "__main__":
    sys.exit(main())
