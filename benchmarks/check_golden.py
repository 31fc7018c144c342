"""Checks that trained models produce their recorded tokens: float32 exactly; captured, eager, with and without overlap.

    python -m benchmarks.check_golden [--device cuda] [--models DIR ...] [--json FILE] [FLAGS]

FLAGS are server flags. A model is a directory with a golden.json, as `tools.record_golden` writes it. In bfloat16,
rounding may change tokens, so the result only reports how many agree.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernels.measure import gpu_facts
from benchmarks.model_shapes import make_config
from benchmarks.result_file import ROOT, write_result
from messages.ring.requests import SamplingParams
from scheduler_proc.offline import OfflineEngine

PLACES = (ROOT / "assets", ROOT.parent / "shared" / "models", ROOT / "shared" / "models")
GOLDEN = "golden.json"
FORMS: dict[str, tuple[str, ...]] = {
    "default": (),
    "no overlap": ("--no-overlap",),
    "eager": ("--enforce-eager",),
}
EXACT = "float32"
DTYPES: dict[str, tuple[str, ...]] = {EXACT: tuple(FORMS), "bfloat16": ("default",)}
"""With the forms that are tried in each."""
MAX_ROWS = 16


@dataclass(frozen=True)
class Finding:
    """All golden cases of a model in one form: the numbers of equal outputs and of equal tokens before a difference."""

    model: str
    dtype: str
    form: str
    num_cases: int
    num_tokens: int
    num_same_cases: int = 0
    num_same_tokens: int = 0
    error: str = ""
    degraded: str = ""
    """What the engine lacks, such as a kernel that cannot be compiled: the tokens do not show whether it is right."""

    @property
    def is_right(self) -> bool:
        return self.num_same_cases == self.num_cases


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a float32 token differs or a model does not run, 2 without a model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--models", type=Path, nargs="+", metavar="DIR", help="default: those of assets/ and, if there, shared/models/")
    add("--quick", action="store_true", help="the first model's first form, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    models = options.models or find_models()
    if not models or not all((model / GOLDEN).is_file() for model in models):
        print(f"check_golden: {options.models or PLACES} hold no model with a {GOLDEN}", file=sys.stderr)
        return 2
    cases = [(model, dtype, form) for dtype, forms in DTYPES.items() for model in models for form in forms]
    found: list[Finding] = []
    for model, dtype, form in cases[: 1 if options.quick else None]:
        found.append(check(model, dtype, form, ["--device", options.device, *flags]))
        print(describe(found[-1]), flush=True)
        if options.json:
            facts = gpu_facts(torch.device("cuda")) if options.device == "cuda" else {}
            write_result(options.json, "golden", {**facts, "findings": [asdict(each) for each in found]})
    return 0 if all(each.is_right for each in found if each.dtype == EXACT or each.error) else 1


def find_models() -> list[Path]:
    return [file.parent for place in PLACES for file in sorted(place.glob(f"*/{GOLDEN}"))]


def check(model: Path, dtype: str, form: str, flags: Sequence[str]) -> Finding:
    """Runs all golden prompts of the model at once; an error of any kind is in the finding, for others still count."""
    cases: list[dict[str, Any]] = json.loads((model / GOLDEN).read_text(encoding="utf-8"))["cases"]
    expected = [case["output_ids"] for case in cases]
    found = Finding(model.name, dtype, form, len(cases), sum(map(len, expected)))
    flags = ["--dtype", dtype, "--max-num-seqs", str(MAX_ROWS), *FORMS[form], *flags]
    params = [SamplingParams(len(output), temperature=0.0, ignore_eos=True) for output in expected]
    try:
        engine = OfflineEngine(make_config(model, flags))
        outputs = engine.generate([case["prompt_ids"] for case in cases], params)
    except (Exception, SystemExit) as error:  # the latter where the GPU itself has failed
        return replace(found, error=f"{type(error).__name__}: {str(error)[:300]}")
    same = [count_same(output.token_ids, right) for output, right in zip(outputs, expected, strict=True)]
    num_cases = sum(count == len(right) for count, right in zip(same, expected, strict=True))
    return replace(found, num_same_cases=num_cases, num_same_tokens=sum(same), degraded=engine.degraded)


def count_same(ours: Sequence[int], right: Sequence[int]) -> int:
    """Returns how many tokens are alike before the first that is not."""
    return next((i for i, pair in enumerate(zip(ours, right, strict=False)) if pair[0] != pair[1]), len(ours))


def describe(found: Finding) -> str:
    state = found.error or f"{found.num_same_tokens} of {found.num_tokens} tokens"
    degraded = f", degraded: {found.degraded}" if found.degraded else ""
    return f"{found.model:<28} {found.dtype:<9} {found.form:<11} {state}{degraded}"


if __name__ == "__main__":
    raise SystemExit(main())
