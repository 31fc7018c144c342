"""Writes the table of docs/use/models.md: each architecture with what the tests compare, from their own tables.

python -m tools.write_models_page
"""

import json
from collections.abc import Iterable
from pathlib import Path

from runtime.gguf.conversion import find_architecture
from runtime.gguf.gguf_file import read_gguf
from scheduler_proc.computing.model.families.registry import ENCODERS, FAMILIES
from tests.checkpoints import EVERY_ARCHITECTURE
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes_on_gpu import CAPTURED
from tests.scheduler_proc.computing.backends.cuda.test_triton_decoding import OPERATIONS
from tests.scheduler_proc.computing.loading import converted_models
from tests.scheduler_proc.computing.loading.quantized.test_checkpoints import ARCHITECTURES as QUANTIZED
from tests.scheduler_proc.computing.model.families.real_configs import REAL
from tests.scheduler_proc.computing.model.trained.train_models import FOLDER as TRAINED
from tests.scheduler_proc.computing.test_ranks import DIVIDED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "use" / "models.md"
GOLDEN = ROOT / "tests" / "runtime" / "gguf" / "golden"
BEGIN = "<!-- Begin of the table that `python -m tools.write_models_page` writes: do not edit it. -->\n"
END = "<!-- End of the table. -->\n"
HEAD = """| architecture | checkpoints | bf16, fp32 | GGUF | quantized | ranks | GPU |
|---|---|---|---|---|---|---|
"""
QUANTIZED_ALONE = {"GptOssForCausalLM": "MXFP4"}
"""Methods of families that are published in no other: their own tests have them."""

ARCHITECTURE_OF = {variant: name for name, variants in EVERY_ARCHITECTURE.items() for variant in variants}


def make_page() -> str:
    """Returns the page as it is, with a new table."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + make_table() + END + rest.split(END)[1]


def make_table() -> str:
    """Returns a row for each architecture of the registry."""
    trained = _architectures_in((*ROOT.glob("assets/*/config.json"), *TRAINED.glob("*/config.json")))
    in_interpreter, on_gpu = ({ARCHITECTURE_OF.get(variant) for variant in tried} for tried in (OPERATIONS, CAPTURED))
    in_gguf, encoders = _gguf_checks(), {name for family in ENCODERS for name in family.architectures}
    rows = ""
    for architecture in (name for family in FAMILIES for name in family.architectures):
        cells = (
            f"`{architecture}`",
            ", ".join(name for name, real in REAL.items() if architecture in real.config["architectures"]),
            "vectors" if architecture in encoders else "tokens, text" if architecture in trained else "tokens",
            in_gguf.get(architecture, "—"),
            QUANTIZED_ALONE.get(architecture) or ("AWQ, GPTQ, fp8" if architecture in QUANTIZED else "—"),
            ", ".join(sorted({str(ranks) for variant, _, ranks, _ in DIVIDED if _is(variant, architecture)})) or "—",
            "tokens" if architecture in on_gpu else "interpreter" if architecture in in_interpreter else "—",
        )
        rows += f"| {' | '.join(cells)} |\n"
    return HEAD + rows


def _is(variant: str, architecture: str) -> bool:
    return variant in EVERY_ARCHITECTURE.get(architecture, ())


def _architectures_in(files: Iterable[Path]) -> set[str]:
    return {name for file in files for name in json.loads(file.read_text(encoding="utf-8"))["architectures"]}


def _gguf_checks() -> dict[str, str]:
    """By architecture of config.json: that of GGUF, and whether logits are compared or only tensors."""
    found: dict[str, str] = {}
    for stem, model in json.loads((GOLDEN / "models.json").read_text(encoding="utf-8")).items():
        name = read_gguf(GOLDEN / f"{stem}.gguf").metadata["general.architecture"]
        found |= dict.fromkeys(model["config"]["architectures"], f"`{name}`: tensors")
    for stem in converted_models.MODELS:
        file = read_gguf(converted_models.FOLDER / f"{stem}.gguf")
        found[find_architecture(file).hf_name] = f"`{file.metadata['general.architecture']}`: logits"
    return found


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
