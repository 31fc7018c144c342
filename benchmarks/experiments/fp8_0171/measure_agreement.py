"""How near a model with fp8 weights is to its own values: the references of the GPU's operations, computed on a CPU.

    python -m benchmarks.experiments.fp8_0171.measure_agreement --model assets/smollm2-135m-instruct --json FILE

Texts are passages of `docs/ARCHITECTURE.md`, whose every token is compared: the divergence (KL) of its distribution in
nats, whether the likeliest token is the same, and the perplexity of the text.
"""

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.result_file import write_result
from kernels.gpu.fusions import fuse
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.sampling import logprobs
from supervisor.flags import parse_flags
from supervisor.run import build_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.drive import Row, run_step

ROOT = Path(__file__).resolve().parents[3]
PAGE_SIZE = 16
FORMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "float32": ("none", ()),
    "fp8 weights": ("fp8", ()),
    "fp8 weights and activations": ("fp8", ("fp8_products",)),
}
"""By name: the value of --quantization, and what of `kernels/gpu/fusions.py` is used."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--passages", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of a passage (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    exact, lines = list[Tensor](), list[dict[str, object]]()
    for name, (quantization, fusions) in FORMS.items():
        fuse(*fusions)
        passages, found = compute(options, quantization)
        exact = exact or found
        lines.append({"form": name, **compare(passages, exact, found)})
        print(lines[-1], flush=True)
    if options.json:
        write_result(options.json, "fp8_agreement", {"model": Path(options.model).name, "forms": lines})


def compute(options: argparse.Namespace, quantization: str) -> tuple[list[list[int]], list[Tensor]]:
    """Returns the tokens of each passage, and the logits [T, V] of all its tokens but the last."""
    flags = ["--model", options.model, "--dtype", "float32", "--quantization", quantization, "--enforce-eager"]
    flags += ["--num-pages", str(options.tokens // PAGE_SIZE + 8), "--max-model-len", str(options.tokens + PAGE_SIZE)]
    flags += ["--max-num-batched-tokens", str(options.tokens), "--device", "cpu", "--no-weight-cache"]
    config = build_config(parse_flags(flags))
    seen: list[Tensor] = []
    compute_top = logprobs.top_logprobs

    def record(logits_NV: Tensor, ids_N: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
        seen.append(logits_NV.float().clone())
        return compute_top(logits_NV, ids_N, num_top)

    logprobs.top_logprobs = record
    try:
        with late_backend(LateDevice):
            runner = load_runner(config, lambda text, fraction: None)
        text = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8")
        ids = Tokenizer.from_file(str(Path(config.facts.model_dir) / "tokenizer.json")).encode(text).ids
        size = options.tokens
        passages, logits = [ids[i * size : (i + 1) * size] for i in range(options.passages)], list[Tensor]()
        params = SamplingParams(max_tokens=1, temperature=0.0, num_prompt_logprobs=0)
        for index, passage in enumerate(passages):
            seen.clear()
            row = Row(index, list(passage), size, params, pages=list(range(size // PAGE_SIZE + 1)))
            run_step(runner, index, [(row, size)], PAGE_SIZE)
            logits.append(torch.cat(seen)[: size - 1])
    finally:
        logprobs.top_logprobs = compute_top
    return passages, logits


def compare(passages: list[list[int]], exact: list[Tensor], found: list[Tensor]) -> dict[str, float]:
    divergences, agreements, losses = list[Tensor](), list[Tensor](), list[Tensor]()
    for passage, exact_TV, found_TV in zip(passages, exact, found, strict=True):
        log_exact, log_found = exact_TV.log_softmax(1), found_TV.log_softmax(1)
        divergences.append((log_exact.exp() * (log_exact - log_found)).sum(1))
        agreements.append((log_exact.argmax(1) == log_found.argmax(1)).float())
        losses.append(-log_found.gather(1, torch.tensor(passage[1:])[:, None])[:, 0])
    return {
        "tokens": sum(map(len, losses)),
        "mean KL": float(torch.cat(divergences).mean()),
        "largest KL": float(torch.cat(divergences).max()),
        "same likeliest token": float(torch.cat(agreements).mean()),
        "perplexity": math.exp(float(torch.cat(losses).mean())),
    }


if __name__ == "__main__":
    main()
