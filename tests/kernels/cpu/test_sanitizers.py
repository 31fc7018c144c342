"""The C kernels under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu import build as build_module
from kernels.cpu.build import built_isas, find_compiler
from kernels.cpu.library import ISA_VARIABLE, use_library
from tests.kernels.c_library import BUILD_TIMEOUT_S, built_library, sanitized_library

ROOT = Path(__file__).resolve().parents[3]
SANITIZER_FLAGS = (
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O0"),
    "--param=asan-instrumentation-with-call-threshold=0",
)
"""Without optimisation every access is watched, and the build takes a quarter of its time; with a call in place of code
for each access, two thirds of that."""


@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
def test_no_kernel_reads_or_writes_what_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here = [isa for isa in built_isas() if use_library(built_library(), isa) == isa]
    monkeypatch.setattr(build_module, "built_isas", lambda: run_here)
    library, compiler = sanitized_library(run_here, SANITIZER_FLAGS), find_compiler()
    # Python is not linked with the sanitizer, so it must be loaded before anything else.
    runtimes = [
        subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {name: value for name, value in os.environ.items() if name != ISA_VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cpu.every_kernel", str(library)],
        cwd=ROOT,
        env=environment
        | {
            "LD_PRELOAD": " ".join(runtime.strip() for runtime in runtimes),
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "2",
        },
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert all(isa in ran.stdout for isa in run_here), ran.stdout
    assert "portable" in run_here
