"""Writes the table of docs/start/memory.md: the memory of published models, by the counts of the server.

python -m tools.write_memory_page
"""

import json
import tempfile
from pathlib import Path

from extras.fit.verdict import decide
from supervisor.flags import parse_flags
from supervisor.run import build_config
from tests.scheduler_proc.computing.model.families.real_configs import REAL

PAGE = Path(__file__).resolve().parents[1] / "docs" / "start" / "memory.md"
BEGIN = "<!-- Begin of the table that `python -m tools.write_memory_page` writes: do not edit it. -->\n"
END = "<!-- End of the table. -->\n"
MODELS = (
    *("SmolLM2 135M", "Qwen3 0.6B", "Llama 3.2 1B", "Qwen3 4B", "Gemma 3 4B", "Llama 3.1 8B", "Qwen3 8B", "Qwen3.5 9B"),
    *("Gemma 3 12B", "Qwen3 14B", "gpt-oss 20B", "Mistral Small 3", "Qwen3 30B-A3B", "Qwen3 32B", "Llama 3.3 70B"),
)
LONG, SHORT = 32_768, 8_192
HEAD = f"""| model | bfloat16 | `int8` | `int4` | KV cache of {SHORT:,} tokens | of {LONG:,} | of {SHORT:,} in int8 |
|---|---|---|---|---|---|---|
"""


def make_page() -> str:
    """Returns the page as it is, with a new table."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return before + BEGIN + make_table() + END + rest.split(END)[1]


def make_table() -> str:
    rows = (f"| {name} | {' | '.join(_cells(name))} |\n" for name in MODELS)
    return HEAD + "".join(rows)


def _cells(name: str) -> list[str]:
    model, cells = REAL[name], list[str]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(model.config))
        for quantization in ("none", "int8", "int4"):
            cells.append(_gib(_measure(folder, "--quantization", quantization)[0]))
        for length, *flags in ((SHORT,), (LONG,), (SHORT, "--kv-cache-dtype", "int8")):
            if length > model.context:
                cells.append("—")
            else:
                cells.append(_gib(_measure(folder, "--max-model-len", str(length), *map(str, flags))[1]))
    return cells


def _measure(folder: str, *flags: str) -> tuple[int, int]:
    """Returns the bytes of the weights, and of the KV cache of one request of full length."""
    shared = ("--model", folder, "--load-format", "dummy", "--device", "cpu", "--dtype", "bfloat16")
    needs = decide(build_config(parse_flags([*shared, *flags])), 1 << 60).needs
    return needs.weight_bytes, needs.sizes.num_bytes(needs.sizes.pages_per_context)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f}" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:.0f}"


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
