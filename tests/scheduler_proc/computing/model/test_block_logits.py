"""Logits of models whose weights stay in the blocks of a GGUF file, against transformers with the blocks' values.

The C kernels round activations to 8 bits per 32 inputs, and nothing else.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from kernels.arguments.block_forms import GGUF_FORMS
from kernels.cpu.library import unload_kernels, use_library
from tests.checkpoints import VOCAB_SIZE, make_config
from tests.gguf_models import build_block_model
from tests.kernels.c_library import built_library
from tests.scheduler_proc.computing.model.test_decoder import our_logits, their_logits

TOLERANCES = {"float32": 0.02, "bfloat16": 0.1}
"""Mean difference of a logit, as a part of the standard deviation of the row's logits.

In float32 it is below 1e-5 until one activation lies so near the middle of two codes that it gets the other one.
"""

CASES = [
    *(("llama-gqa-tied", form) for form in GGUF_FORMS),
    *(("qwen3-biases-untied", form) for form in list(GGUF_FORMS)[::3]),
    *(("gpt2", form) for form in ("Q5_0", "MXFP4", "Q4_K")),
]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    use_library(built_library())
    yield
    unload_kernels()


def _round(x: Tensor) -> Tensor:
    """Returns the activations [..., inputs] as the C kernels see them."""
    x_G = x.unflatten(-1, (-1, 32))
    scale_1 = x_G.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((x_G / scale_1).round() * scale_1).flatten(-2)


@pytest.mark.parametrize(("variant", "form"), CASES)
def test_logits(tmp_path: Path, variant: str, form: str) -> None:
    sizes = {"n_embd": 256, "n_head": 4} if variant == "gpt2" else {"head_dim": 64}
    model = build_block_model(tmp_path, variant, lambda name: "F32" if "position" in name else form, **sizes)
    reference = transformers.AutoModelForCausalLM.from_pretrained(model.values, dtype=torch.float32)
    for module in reference.modules():
        if isinstance(module, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)):
            module.register_forward_pre_hook(lambda _, arguments: _round(*arguments))
    chooser = random.Random(8)
    prompts = [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 16, 33, 48)]
    expected = their_logits(reference, prompts, "float32")
    for dtype, tolerance in TOLERANCES.items():
        difference = (our_logits(make_config(model.path, dtype=dtype), prompts) - expected).abs()
        assert float((difference / expected.std(-1, keepdim=True)).mean()) < tolerance, dtype
