"""transformers on the same work: `generate` at several batch sizes, continuous batching on the offline workload.

    python -m benchmarks.bench_transformers --shape qwen3-0.6b [--rows 1 32 256] [--context 512] [--device cuda]

Shapes, random weights, contexts and workload are those of bench_step and bench_offline. If this version of transformers
cannot run a case on the device, the result carries the reason.
"""

import argparse
import json
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from benchmarks.bench_offline import offline_workload
from benchmarks.kernels.measure import gpu_facts
from benchmarks.model_shapes import SHAPES, TEMPERATURE, make_shape
from benchmarks.result_file import write_result

DECODE_TOKENS = 33
RESULT_TIMEOUT_S = 120.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--rows", type=int, nargs="+", default=[1, 32, 256], help="batch sizes (default: 1 32 256)")
    add("--context", type=int, default=512, help="prompt tokens of each row (default: %(default)s)")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer and few, short rows, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.context = [2], 16
    model = load_model(make_shape(options.shape, 1 if options.quick else None), options.device)
    rows = [{"rows": num, "ms": step_ms(model, num, options.context)} for num in options.rows]
    found = {"rows": rows, "offline": run_offline(model, 2 if options.quick else 256, 8 if options.quick else 1024)}
    print(json.dumps(found, indent=1))
    if options.json:
        facts = gpu_facts(torch.device(options.device)) if options.device == "cuda" else {}
        settings = {"transformers": version("transformers"), "shape": options.shape, "context": options.context}
        write_result(options.json, "transformers", {**facts, **settings, "is_quick": options.quick, **found})
    return 0


def load_model(shape: dict[str, object], device: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="sluice-shape-") as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(shape), encoding="utf-8")
        config = AutoConfig.from_pretrained(scratch)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def step_ms(model: Any, num_rows: int, context: int) -> float:
    """Returns the time of a decode step in `generate`: what more tokens take, over their number."""
    prompts = torch.randint(model.config.vocab_size, (num_rows, context), device=model.device)
    seconds: list[float] = []
    for num_tokens in (2, 1, DECODE_TOKENS):
        begin_s = time.perf_counter()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
            pad_token_id=0,
        )
        if model.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin_s)
    _, one_s, all_s = seconds
    return (all_s - one_s) / (DECODE_TOKENS - 1) * 1e3


def run_offline(model: Any, num_sequences: int, longest: int) -> dict[str, object]:
    """Returns tok/s of the continuous batching, or why there is no number."""
    limit = int(getattr(model.config, "max_position_embeddings", 2 * longest))
    prompts, output_lens = offline_workload(num_sequences, min(longest, limit // 2))
    sampling = GenerationConfig(do_sample=True, temperature=TEMPERATURE, top_k=0, eos_token_id=None, pad_token_id=0)
    try:
        begin_s = time.perf_counter()
        with model.continuous_batching_context_manager(generation_config=sampling) as manager:
            for prompt, num_tokens in zip(prompts, output_lens, strict=True):
                manager.add_request(prompt, max_new_tokens=num_tokens, eos_token_id=-1)
            num_tokens = 0
            for _ in prompts:
                result = manager.get_result(timeout=RESULT_TIMEOUT_S)
                if result is None or result.error:
                    return {"reason": f"no result: {'timeout' if result is None else result.error}"}
                num_tokens += len(result.generated_tokens)
        seconds = time.perf_counter() - begin_s
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {str(error)[:200]}"}
    assert num_tokens == sum(output_lens)
    return {"num_output_tokens": num_tokens, "seconds": seconds, "output_tok_per_s": num_tokens / seconds}


if __name__ == "__main__":
    raise SystemExit(main())
