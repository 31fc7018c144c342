"""Models that transformers computes give transformers' tokens in every schedule, from the cache, and with drafts."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers

from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import CONTEXT, TRANSFORMERS_VARIANTS, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice
from tests.scheduler_proc.computing.backends.cuda.test_forward_passes import load_late
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.reference import assert_greedy

NAMES = [
    *(name for variants in TRANSFORMERS_VARIANTS.values() for name in variants),
    "gemma2",
    "gpt-oss",
    "deepseek-v3",
]
NUM_TOKENS = 20
SCHEDULES = [Schedule(), Schedule(chunk_tokens=7, stagger=1, seed=2), Schedule(chunk_tokens=1, seed=1)]


@dataclass(frozen=True)
class Loaded:
    model: "transformers.PreTrainedModel"
    runner: Runner


@pytest.fixture(scope="module", params=NAMES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp(request.param)
    model = build_checkpoint(path, request.param)
    return Loaded(model, load_runner(make_config(path, model_impl="transformers"), lambda text, fraction: None))


def make_prompts(lens: list[int], num_shared: int = 0) -> list[list[int]]:
    chooser = random.Random(4)
    shared = [chooser.randrange(VOCAB_SIZE) for _ in range(num_shared)]
    return [shared + [chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in lens]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_requests_together(loaded: Loaded, schedule: Schedule) -> None:
    prompts = make_prompts([1, 15, 17, 40])
    for prompt, output in zip(prompts, generate(loaded.runner, prompts, NUM_TOKENS, schedule), strict=True):
        assert_greedy(loaded.model, prompt, output, f"{schedule}, prompt of {len(prompt)}")


def test_a_request_alone(loaded: Loaded) -> None:
    (prompt,) = make_prompts([33])
    (output,) = generate(loaded.runner, [prompt], NUM_TOKENS)
    assert_greedy(loaded.model, prompt, output, "alone")


@pytest.mark.parametrize(
    "flags",
    [{}, {"max_num_batched_tokens": 7, "max_num_seqs": 4}, {"num_pages": 6}, {"speculative": "ngram"}],
    ids=str,
)
def test_both_halves_with_cached_prompts(tmp_path: Path, flags: dict[str, Any]) -> None:
    model = build_checkpoint(tmp_path, "starcoder2")
    engine = OfflineEngine(make_config(tmp_path, model_impl="auto", **flags))
    params = [SamplingParams(NUM_TOKENS, temperature=0.0)] * 4
    prompts = make_prompts([1, 5, 17, 30], num_shared=20)
    assert max(map(len, prompts)) + NUM_TOKENS <= CONTEXT
    for turn in range(2):
        outputs = engine.generate(prompts, params)
        for prompt, output in zip(prompts, outputs, strict=True):
            assert len(output.token_ids) == NUM_TOKENS
            assert_greedy(model, prompt, output.token_ids, f"turn {turn}, prompt of {len(prompt)}")
    assert min(output.usage.cached_tokens for output in outputs) >= 16
    assert (engine.gauges["drafts"] > 0) == ("speculative" in flags)


def test_overlapped_steps_on_a_stand_in_for_a_gpu(tmp_path: Path) -> None:
    model, device = build_checkpoint(tmp_path, "starcoder2"), LateDevice()
    runner = load_late(tmp_path, device)
    assert runner.can_overlap
    prompts = make_prompts([1, 15, 17, 40])
    outputs = generate(runner, prompts, NUM_TOKENS, SCHEDULES[1])
    assert device.num_replays == 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert_greedy(model, prompt, output, f"prompt of {len(prompt)}")


def test_bfloat16_and_codes_of_k_and_v(tmp_path: Path) -> None:
    """The steps of a checkpoint that is checked on a copy."""
    build_checkpoint(tmp_path, "gpt-oss")
    config = make_config(tmp_path, model_impl="transformers", dtype="bfloat16", kv_cache_dtype="int8")
    (output,) = generate(load_runner(config, lambda text, fraction: None), make_prompts([20]), NUM_TOKENS)
    assert len(output) == NUM_TOKENS
