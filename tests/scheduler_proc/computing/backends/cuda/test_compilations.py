"""No Triton kernel is compiled after loading: all streams would stop for seconds, and one that fails would stay."""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import build_checkpoint
from tests.gguf_models import build_block_model

TIMEOUT_S = 200
WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
"""The second layer has a window."""


Find = Callable[..., dict[str, Any]]
"""Returns the specializations compiled at load, and later, of the model in a directory with flags."""


@pytest.fixture(scope="module")
def find_compilations() -> Iterator[Find]:
    """It works in a process of its own, because kernels are interpreted here."""
    pytest.importorskip("triton", reason="needs triton")
    command = [sys.executable, "-m", "tests.scheduler_proc.computing.backends.cuda.compilations", "--serve"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        sent, received = process.stdin, process.stdout

        def find(model_dir: Path, *flags: str) -> dict[str, Any]:
            print(json.dumps([str(model_dir), *flags]), file=sent, flush=True)
            line = received.readline()
            errors.seek(0)
            assert line, errors.read()
            return json.loads(line)

        yield find


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("variant", "shape", "flags"),
    [
        ("qwen3-gqa-tied", {"vocab_size": 10_000, "num_hidden_layers": 2} | WINDOWS, []),
        ("qwen3-gqa-tied", {"vocab_size": 10_000, "num_hidden_layers": 1, "head_dim": 64}, ["--fused"]),
        ("gpt2", {"vocab_size": 10_001, "n_layer": 1}, ["--enforce-eager"]),
        ("qwen3moe", {"vocab_size": 10_000, "num_hidden_layers": 1}, ["--enforce-eager"]),
    ],
)
def test_all_kernels_are_compiled_at_load(
    variant: str, shape: dict[str, Any], flags: list[str], tmp_path: Path, find_compilations: Find
) -> None:
    """Both vocabularies have three parts; rows of the odd one begin anywhere in memory.

    Layers with a window have a prefill kernel of their own; their decode kernel is the same.
    """
    build_checkpoint(tmp_path, variant, **shape)
    found = find_compilations(tmp_path, *flags)
    assert found["later"] == {}
    names = {text.partition("[")[0] for text in found["loaded"]}
    assert {
        "attend",
        "draw_row_kernel",
        "fill_kernel",
        "filter_top_kernel",
        "norm_kernel",
        "take_tokens_kernel",
    } <= names
    assert (Counter(text.partition("[")[0] for text in found["loaded"])["multiply_few"] == 5) == ("--fused" in flags)
    limit = 40 if "moe" in variant or "--fused" in flags else 35
    assert len(found["loaded"]) < limit, "specializations differ that need not"


@pytest.mark.timeout(TIMEOUT_S)
def test_kernels_of_weights_in_their_forms_are_compiled_at_load(tmp_path: Path, find_compilations: Find) -> None:
    """The head's form is no other weight's; q, k and v have several. Steps of more sizes run without graphs."""
    forms = {"attn_v": "Q6_K", "output.weight": "Q5_0", "token_embd": "Q8_0", "": "Q4_K"}
    model = build_block_model(
        tmp_path, "qwen2-mha-untied", lambda name: next(form for part, form in forms.items() if part in name)
    )
    found = find_compilations(model.path, "--enforce-eager")
    assert found["later"] == {}
    names = [text.partition("[")[0] for text in found["loaded"]]
    assert 0 < names.count("multiply_codes") <= 2 * 3
    assert 0 < names.count("dequantize") <= 4


@pytest.mark.timeout(TIMEOUT_S)
def test_kernels_of_fp8_weights_are_compiled_at_load(tmp_path: Path, find_compilations: Find) -> None:
    """Inputs are cut into parts, or fill a part of a block; steps have few and many tokens."""
    sizes: dict[str, Any] = {
        "hidden_size": 1024,
        "intermediate_size": 192,
        "num_hidden_layers": 1,
        "vocab_size": 10_000,
    }
    build_checkpoint(tmp_path, "qwen3-gqa-tied", **sizes)
    found = find_compilations(tmp_path, "--enforce-eager", "--fp8", "--fused")
    assert found["later"] == {}
    names = [text.partition("[")[0] for text in found["loaded"]]
    assert 4 <= names.count("multiply_scaled") <= 6
    assert 2 <= names.count("quantize_row") <= 3


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    ("variant", "shape", "expected"),
    [
        ("qwen3-gqa-tied", {"num_hidden_layers": 2} | WINDOWS, {"attend": 2, "merge": 1, "multiply": 2}),
        ("qwen3moe", {"num_hidden_layers": 1}, {"attend": 1, "merge": 1, "multiply_experts": 1}),
        ("youtu", {"num_hidden_layers": 1}, {"attend": 1, "merge": 1, "store_latents_kernel": 1}),
    ],
)
def test_fixed_launches_are_one_kernel_for_all_steps(
    variant: str, shape: dict[str, Any], expected: dict[str, int], tmp_path: Path, find_compilations: Find
) -> None:
    """Decode rows in every count, prompts and captured steps: attention has a kernel for each window, and products have
    two, as the inputs of one weight are no multiple of 16."""
    build_checkpoint(tmp_path, variant, vocab_size=10_000, **shape)
    found = find_compilations(tmp_path, "--deterministic")
    assert found["later"] == {}
    names = [text.partition("[")[0] for text in found["loaded"]]
    assert {name: names.count(name) for name in expected} == expected
