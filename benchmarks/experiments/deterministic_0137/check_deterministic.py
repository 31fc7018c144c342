"""Checks that with --deterministic a token's logprobs are the same bits however its step is made up.

    python -m benchmarks.experiments.deterministic_0137.check_deterministic [--shape NAME] [--dtypes NAME ...] [FLAGS]

FLAGS are server flags. Prompts of random tokens, of a model with random weights, are computed alone, together, in
chunks, and continued after half of their outputs; captured steps have several sizes then.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.kernels.measure import gpu_facts
from benchmarks.model_shapes import PAGE_SIZE, SHAPES, load_shape, make_shape
from benchmarks.result_file import write_result
from messages.errors import SluiceError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.runner import Runner
from tests.scheduler_proc.computing.drive import Row, run_step

PROMPT_LENS = (1700, 5, 511, 513, 64, 130, 1024, 2)
"""Around splits of keys, blocks and pages, the longest first."""
NUM_TOKENS = 16
CHUNKS = (7, 64, 100)
PARAMS = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=2)

Computed = list[tuple[int, bytes]]
"""The next tokens of a prompt, each with the bits of the logprobs of the two best."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if a bit differs or the model does not run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--dtypes", nargs="+", default=["bfloat16", "float32"], help="default: %(default)s")
    add("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    add("--quick", action="store_true", help="one layer, two prompts and one dtype, as a smoke test")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options, flags = parser.parse_known_args(arguments)
    num_prompts, num_dtypes = (2, 1) if options.quick else (None, None)
    shape, lens = make_shape(options.shape, 1 if options.quick else None), PROMPT_LENS[:num_prompts]
    own = ["--deterministic", "--device", options.device, "--block-size", str(PAGE_SIZE), "--num-pages", "2048"]
    own += ["--max-num-seqs", str(len(PROMPT_LENS)), "--max-num-batched-tokens", "4096", "--max-model-len", "2048"]
    found: dict[str, dict[str, str]] = {}
    for dtype in options.dtypes[:num_dtypes]:
        try:
            runner = load_shape(shape, [*own, "--dtype", dtype, *flags])
        except SluiceError as error:
            print(f"check_deterministic: {error}", file=sys.stderr)
            return 1
        found[dtype] = compare(runner, lens)
        if options.json:
            facts = gpu_facts(torch.device("cuda")) if options.device == "cuda" else {}
            write_result(options.json, "deterministic", {**facts, "shape": options.shape, "differences": found})
    return 0 if not any(text for ways in found.values() for text in ways.values()) else 1


def compare(runner: Runner, prompt_lens: Sequence[int]) -> dict[str, str]:
    """Returns what differs from prompts that are computed alone, by the way in which they are computed."""
    generator = random.Random(1)
    prompts = [[generator.randrange(1000) for _ in range(size)] for size in prompt_lens]
    alone = [compute(runner, [prompt], 4096, NUM_TOKENS)[0] for prompt in prompts]
    half = NUM_TOKENS // 2
    continued = [[*prompt, *(token for token, _ in own[:half])] for prompt, own in zip(prompts, alone, strict=True)]
    ways = {f"chunks of {size}": (prompts, size, 0) for size in CHUNKS}
    ways |= {"together": (prompts, 4096, 0), "continued": (continued, 4096, half)}
    found: dict[str, str] = {}
    for name, (those, chunk_tokens, first) in ways.items():
        results = compute(runner, those, chunk_tokens, NUM_TOKENS - first)
        wrong = [
            f"prompt of {size}, token {place}"
            for size, ours, own in zip(prompt_lens, results, alone, strict=True)
            for place, (one, other) in enumerate(zip(ours, own[first:], strict=True), first)
            if one != other
        ]
        found[name] = f"{len(wrong)} tokens: {'; '.join(wrong[:3])}" if wrong else ""
        print(f"{name:<16} {found[name] or 'the same bits'}", flush=True)
    return found


def compute(runner: Runner, prompts: Sequence[Sequence[int]], chunk_tokens: int, num_tokens: int) -> list[Computed]:
    """Returns what follows each prompt; each begins a step after the one before it. Pages are handed out as needed."""
    rows = [Row(index, list(prompt), len(prompt), PARAMS, first_step=index) for index, prompt in enumerate(prompts)]
    for row in rows if runner.states else ():
        row.state_slot = row.uid
    pages, window_pages = list(range(runner.num_pages)), list(range((runner.windows or (0, 0))[1]))
    results: list[Computed] = [[] for _ in prompts]
    step = 0
    while running := [row for row in rows if len(row.output_ids) < num_tokens]:
        planned = [
            (row, min(chunk_tokens, len(row.ids) - row.num_computed)) for row in running if row.first_step <= step
        ]
        for row, num_new in planned:
            while len(row.pages) * PAGE_SIZE < row.num_computed + num_new:
                row.pages.append(pages.pop())
                row.window_pages += [window_pages.pop()] if window_pages else []
        ends = {row.uid for row, num_new in planned if row.num_computed + num_new == len(row.ids)}
        ran, output = run_step(runner, step, planned, PAGE_SIZE)
        for place, row in enumerate(row for row, _ in ran if row.uid in ends):
            assert output.logprobs is not None
            results[row.uid].append((row.ids[-1], output.logprobs.top_logprobs[8 * place : 8 * place + 8]))
        step += 1
    return results


if __name__ == "__main__":
    raise SystemExit(main())
