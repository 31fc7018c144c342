import copy
import dataclasses
import random
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import transformers
from msgspec.structs import replace
from torch import Tensor

from messages.columns import pack_int32
from messages.config.server import Config
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors, allocate_cache
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import DTYPES
from scheduler_proc.computing.step.packing import make_step_inputs
from tests.checkpoints import VARIANTS, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, plan_batch

# Largest difference of a logit from transformers' in float32, as a part of the standard deviation of the row's logits.
TOLERANCES = {"float32": 2e-5, "float16": 0.05, "bfloat16": 0.4}
# The mean difference, as a multiple of what transformers itself loses in that dtype. Where a processor has no bfloat16,
# sums of products depend on the number of threads, and so do both.
MEAN_TOLERANCE = 1.5


def our_decoder(config: Config) -> tuple[DescribedDecoder, KVTensors, torch.device]:
    """Returns the model, and a cache of 16 pages of 16 tokens and 4 states."""
    path = Path(config.facts.model_dir)
    hf_config = read_hf_config(path)
    family, placement = find_family(hf_config), CpuBackend().find_placement(config.model, config.cache, hf_config)
    description = family.describe(hf_config, config.facts.max_model_len)
    shard = Shard(description)
    weights = load_weights(shard, family, open_weights(path, "auto"), placement, lambda text, part: None)
    cache = allocate_cache(description, 16, 16, placement, num_states=4)
    return DescribedDecoder(description, weights, config.facts.max_model_len), cache, placement.device


def our_logits(config: Config, prompts: list[list[int]]) -> Tensor:
    decoder, cache, device = our_decoder(config)
    rows = [
        Row(i, prompt, len(prompt), pages=[3 * i, 3 * i + 1, 3 * i + 2], state_slot=i if cache.state_tensors else -1)
        for i, prompt in enumerate(prompts)
    ]
    with torch.inference_mode():
        step = make_step_inputs(plan_batch(0, [(row, len(row.ids)) for row in rows], 16), device)
        return decoder.logits(decoder.forward(step, cache.layers)).float()


def their_logits(model: "transformers.PreTrainedModel", prompts: list[list[int]], dtype: str) -> Tensor:
    rounded = copy.deepcopy(model).to(DTYPES[dtype])
    with torch.inference_mode():
        return torch.stack([rounded(torch.tensor([prompt])).logits[0, -1] for prompt in prompts]).float()


class Built(NamedTuple):
    """A checkpoint, prompts, and transformers' logits of their last tokens in float32."""

    path: Path
    model: "transformers.PreTrainedModel"
    prompts: list[list[int]]
    logits: Tensor


@pytest.fixture(scope="module", params=VARIANTS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    path, chooser = tmp_path_factory.mktemp(request.param), random.Random(8)
    model = build_checkpoint(path, request.param)
    prompts = [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 16, 33, 48)]
    return Built(path, model, prompts, their_logits(model, prompts, "float32"))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_logits_are_those_of_transformers_in_float32(built: Built, dtype: str) -> None:
    path, model, prompts, expected = built
    spread = expected.std(-1, keepdim=True)
    ours = (our_logits(make_config(path, dtype=dtype), prompts) - expected).abs() / spread
    theirs = (their_logits(model, prompts, dtype) - expected).abs() / spread
    assert float(ours.max()) < TOLERANCES[dtype]
    assert float(ours.mean()) < MEAN_TOLERANCE * float(theirs.mean()) + 2e-6


@pytest.mark.parametrize("variant", ["gpt2", "qwen3-gqa-tied"])
def test_the_last_layer_attends_with_last_tokens_alone(tmp_path: Path, variant: str) -> None:
    """A decode row, a chunk that does not end its prompt, a row of which all tokens are sampled, and a whole prompt."""
    build_checkpoint(tmp_path, variant)
    decoder, cache, device = our_decoder(make_config(tmp_path))
    chooser, num_before, num_new = random.Random(8), (20, 3, 17, 0), (1, 30, 3, 37)
    rows = [Row(i, chooser.choices(range(VOCAB_SIZE), k=40), 40, pages=[3 * i, 3 * i + 1, 3 * i + 2]) for i in range(4)]
    with torch.inference_mode():
        for num_tokens in (num_before, num_new):
            batch = plan_batch(0, [(row, num) for row, num in zip(rows, num_tokens, strict=True) if num], 16)
            if num_tokens is num_new:
                batch = replace(batch, sample_tokens=pack_int32([0, 31, 32, 33, 70]))
            step = make_step_inputs(batch, device)
            hidden = decoder.forward(step, cache.layers)
            for row, num in zip(rows, num_tokens, strict=True):
                row.num_computed += num
        assert step.head_rows is not None
        expected = decoder.forward(dataclasses.replace(step, head_rows=None), cache.layers)
    assert hidden.shape == (5, decoder.model.hidden_size)
    torch.testing.assert_close(hidden, expected, rtol=1e-5, atol=1e-6)
