"""Checks in seconds that a machine can run what is planned for its GPU, and notes what timings depend on.

    python -m tools.check_gpu [--json FILE]       (make gpu-check)

Returns 1 if a library, a C compiler or the GPU is missing, or if torch would round the products of float32.
"""

import argparse
import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

LIBRARIES = (
    *(
        "torch",
        "triton",
        "numpy",
        "transformers",
        "safetensors",
        "tokenizers",
        "msgspec",
        "zmq",
        "starlette",
        "uvicorn",
    ),
    *("httptools", "llguidance", "psutil", "pytest", "pytest_timeout", "hypothesis"),
)
COMPILERS = ("gcc", "cc", "clang")
"""Triton builds its launchers with one of them."""

CLOCKS = (
    "name",
    "pstate",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "temperature.gpu",
)
THROTTLING = ("clocks_throttle_reasons.active", "clocks_throttle_reasons.sw_power_cap")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the facts to FILE")
    options = parser.parse_args(arguments)
    facts, complaints = check()
    text = json.dumps({**facts, "complaints": complaints}, indent=1)
    print(text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text, encoding="utf-8")
    for complaint in complaints:
        print(f"check_gpu: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def check() -> tuple[dict[str, Any], list[str]]:
    """Returns the facts of this machine, and what is missing or set otherwise than it must be."""
    facts: dict[str, Any] = {"python": sys.version.split()[0]}
    complaints: list[str] = []
    for name in LIBRARIES:
        try:
            facts[name] = str(getattr(import_module(name), "__version__", "?"))
        except Exception as error:  # a library built for another torch may raise anything
            complaints.append(f"{name} cannot be imported: {error}")
    facts["compiler"] = next(filter(None, map(shutil.which, COMPILERS)), None)
    if facts["compiler"] is None:
        complaints.append("there is no C compiler, with which Triton builds its launchers")
    if "torch" in facts:
        about, wrong = check_torch()
        facts |= about
        complaints += wrong
    for fields in (CLOCKS, THROTTLING):
        facts |= ask_driver(fields)
    return facts, complaints


def check_torch() -> tuple[dict[str, Any], list[str]]:
    """Returns torch's facts and complaints. Tests compare with float32, which TF32 would round to 10 bits."""
    torch = import_module("torch")
    matmul = torch.backends.cuda.matmul
    facts = {
        "cuda": torch.version.cuda,
        "tf32": bool(matmul.allow_tf32),
        "reduced bf16 sums": str(matmul.allow_bf16_reduced_precision_reduction),
        "reduced fp16 sums": str(matmul.allow_fp16_reduced_precision_reduction),
    }
    complaints = ["torch multiplies float32 in TF32"] if facts["tf32"] else []
    if not torch.cuda.is_available():
        complaints.append("torch finds no CUDA device")
    return facts, complaints


def ask_driver(fields: tuple[str, ...]) -> dict[str, str]:
    """Returns what the driver reports of the first GPU; nothing without a driver, or where it knows no such field."""
    if shutil.which("nvidia-smi") is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    values = done.stdout.split("\n", 1)[0].split(", ")
    return dict(zip(fields, values, strict=False)) if done.returncode == 0 else {}


if __name__ == "__main__":
    raise SystemExit(main())
