"""Prints which Triton kernels would be compiled while a model is loaded for a GPU, and which later, as JSON.

    python -m tests.scheduler_proc.computing.backends.cuda.compilations MODEL [FLAG ...] [--compile]

FLAG is --enforce-eager, --deterministic, --fp8 for weights, or --fused for all of `FUSIONS`. Weights in blocks, of a
GGUF file, are computed in planes.

It needs no GPU: Triton chooses each specialization as for a Hopper GPU, notes it, and neither compiles nor launches it.
So tokens mean nothing. Tensors are on the CPU, where memory is aligned as on a GPU or better. MODEL is a directory or a
benchmark's shape, of which one layer is enough.

With `--serve` alone it does this for each line of its input, a list of arguments in JSON.

With --compile those of loading are compiled, into Triton's cache: with the same Triton, and the same path of the cache,
a machine with such a GPU compiles none of them.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver as active_driver

from benchmarks.bench_http import TOKENIZER
from benchmarks.model_shapes import SHAPES, make_shape, with_window_pages, write_model
from kernels.formats import plain, registry
from kernels.gpu.fusions import FUSIONS, fuse
from kernels.gpu.triton_kernels import load_triton_kernels
from messages.columns import pack_float32, pack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import formats
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.computing.drive import Row, plan_batch
from tests.scheduler_proc.computing.sampling.row_processing import RowProcessing, plan_logits_processing

PAGE_SIZE, MAX_ROWS = 16, 17
TARGET = GPUTarget("cuda", 90, 32)

PARAMS = {
    "greedy": SamplingParams(1, temperature=0.0),
    "drawn": SamplingParams(1, temperature=0.8, seed=3),
    "top-k, top-p": SamplingParams(1, temperature=0.6, top_k=20, top_p=0.95, seed=5),
    "min-p": SamplingParams(1, temperature=0.6, min_p=0.1, seed=6),
    "typical-p": SamplingParams(1, temperature=0.6, typical_p=0.9, top_p=0.9, seed=6),
    "allowed": SamplingParams(1, temperature=0.0, allowed_token_ids=pack_int32([3, 4, 5])),
    "allowed, drawn": SamplingParams(1, temperature=1.0, top_k=5, min_p=0.1, allowed_token_ids=pack_int32([3, 4, 5])),
    "biases": SamplingParams(1, temperature=0.0, bias_ids=pack_int32([3]), bias_values=pack_float32([1.0])),
    "penalties": SamplingParams(1, temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.5, top_p=0.9),
    "logprobs": SamplingParams(1, temperature=0.0, num_logprobs=5),
    "chosen logprobs": SamplingParams(1, temperature=0.6, top_k=20, num_logprobs=0),
    "prompt logprobs": SamplingParams(1, temperature=0.0, num_prompt_logprobs=2),
    "XTC": SamplingParams(1, temperature=1.0, xtc_probability=0.5, top_n_sigma=1.0),
}


class NamedTarget:
    """A driver of Triton that only names the GPU."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    path, shape = Path(sys.argv[1]), sys.argv[1] if sys.argv[1] in SHAPES else None
    if shape:
        write_model(path := Path(tempfile.mkdtemp()), make_shape(shape, 1), TOKENIZER)
    seen: set[str] = set()
    new: list[str] = []

    compiles = "--compile" in sys.argv

    def record(*, repr: str, fn: Any, compile: Any, **_: Any) -> bool:
        key = f"{repr} {compile['key']}"
        if key not in seen:
            seen.add(key)
            new.append(repr)
            if compiles:
                settings.jit_cache_hook = None
                fn.jit_function.preload(compile["specialization_data"])
                fn.jit_function.device_caches[0][0].clear()  # it cannot be launched here
                settings.jit_cache_hook = record
        return True  # Triton compiles nothing then

    driver: Any = NamedTarget()
    active_driver.set_active(driver)
    settings: Any = knobs.runtime
    settings.jit_cache_hook = record
    registry.is_on_cpu = lambda device: False
    # On a GPU weights that are no blocks are plain; their products are Triton's with --deterministic alone.
    formats.has_packed_kernel, plain.is_on_cpu = (lambda _: False), (lambda _: False)
    torch.empty, torch.empty_like = _of_zeros(torch.empty), _of_zeros(torch.empty_like)
    fuse(*(FUSIONS if "--fused" in sys.argv else ()))
    flags = {
        "max_num_seqs": MAX_ROWS,
        "max_num_batched_tokens": 256,
        "dtype": "bfloat16",
        "enforce_eager": "--enforce-eager" in sys.argv,
        "deterministic": "--deterministic" in sys.argv,
        "quantization": "fp8" if "--fp8" in sys.argv else "none",
    } | ({"load_format": "dummy", "num_pages": 4096} if shape else {})
    with late_backend(LateDevice, lambda device_type: load_triton_kernels("cpu")):
        runner = load_runner(make_config(path, **flags), lambda text, fraction: None)
    assert runner.degraded == "", runner.degraded
    loaded, later = sorted(new), dict[str, list[str]]()
    for name, batch in () if compiles else traffic(runner):
        new.clear()
        runner.run(with_window_pages(batch, runner.windows))
        if new:
            later[name] = sorted(new)
    print(json.dumps({"loaded": loaded, "later": later}))


def serve() -> None:
    """Runs each command in a fork of this process, because the imports take longer than the rest. Ends if one fails."""
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            sys.argv[1:] = json.loads(line)
            return main()
        if os.waitpid(pid, 0)[1]:
            break
    return None


def _of_zeros(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Tokens that no kernel has written must be tokens."""
    return lambda *arguments, **named: allocate(*arguments, **named).zero_()


def traffic(runner: Runner) -> Iterator[tuple[str, Batch]]:
    """Every way to choose a token, alone and together, in decode rows and prompts, in several counts of rows."""
    for num_rows in (1, 2, 5, 16, MAX_ROWS):
        for name, params in PARAMS.items():
            yield f"{num_rows} × {name}", make_batch([params] * num_rows, num_rows // 2)
        mixed = [params for params in PARAMS.values() if params.num_prompt_logprobs is None]
        for shift in range(3):
            some = [mixed[(shift + 5 * row) % len(mixed)] for row in range(num_rows)]
            yield f"{num_rows} mixed rows, {shift}", make_batch(some, num_rows)
    batch = make_batch([PARAMS["greedy"]] * 7, 7)
    vocab_size = runner._vocab_size
    for masked in ([2], [0, 3, 4]):
        rows = [RowProcessing(grammar_ids=(1, 2) if row in masked else None) for row in range(7)]
        yield f"masks {masked}", _replaced(batch, logits_processing=plan_logits_processing(rows, vocab_size))
    yield "a long prompt", make_batch([PARAMS["top-k, top-p"]], 0, prompt_len=81)
    yield "logprobs of a long prompt", make_batch([PARAMS["prompt logprobs"]], 0, prompt_len=81)
    yield "two steps overlap", _replaced(batch, future_token_indices=pack_int32([0] * 7))


def make_batch(params: list[SamplingParams], num_decode: int, prompt_len: int = 3) -> Batch:
    """Returns a step with a row for each of `params`: the first decode, the others have a whole prompt."""
    planned: list[tuple[Row, int]] = []
    for index, each in enumerate(params):
        is_decode = index < num_decode and each.num_prompt_logprobs is None
        pages = list(range(-(-prompt_len // PAGE_SIZE) + 1))
        row = Row(index, list(range(1, prompt_len + 1 + is_decode)), prompt_len, each, pages=pages)
        planned.append((replace(row, num_computed=prompt_len), 1) if is_decode else (row, prompt_len))
    return plan_batch(1, planned, PAGE_SIZE)


def _replaced(batch: Batch, **changes: Any) -> Batch:
    return Batch(**{name: getattr(batch, name) for name in Batch.__struct_fields__} | changes)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
