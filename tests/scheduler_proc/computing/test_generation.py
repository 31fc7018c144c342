"""Greedy ids of the runner against transformers in float32, in every schedule a scheduler may choose."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from messages.columns import pack_float32, pack_int32
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Schedule, generate
from tests.scheduler_proc.computing.reference import assert_greedy

PROMPT_LENS = [1, 2, 15, 16, 17, 40, CONTEXT - 1]
SCHEDULES = [
    Schedule(),
    Schedule(chunk_tokens=1, seed=1),
    Schedule(chunk_tokens=7, stagger=1, seed=2),
    Schedule(chunk_tokens=16, stagger=2, seed=3),
]


ONE_OF_EACH = (
    *("gpt2", "llama-gqa-tied", "mistral-window", "qwen2-mha-untied", "qwen2-windows", "qwen3-gqa-tied"),
    *("gemma2", "gemma3", "olmo2", "olmo3", "cohere2", "exaone4"),
    *("phi3-window", "phi3-long", "smollm3", "granite", "glm4", "ministral3"),
)
"""Families with and without windows. test_every_family.py has all, and test_decoder.py the logits of each variant."""


@dataclass(frozen=True)
class Loaded:
    variant: str
    model: "transformers.PreTrainedModel"
    runner: Runner


@pytest.fixture(scope="module", params=ONE_OF_EACH)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp(request.param)
    model = build_checkpoint(path, request.param)
    return Loaded(request.param, model, load_runner(make_config(path), lambda text, fraction: None))


def make_prompts(lens: list[int]) -> list[list[int]]:
    chooser = random.Random(4)
    return [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in lens]


def test_a_request_alone(loaded: Loaded) -> None:
    for prompt in make_prompts(PROMPT_LENS):
        num_tokens = min(8, CONTEXT - len(prompt))
        (output,) = generate(loaded.runner, [prompt], num_tokens)
        assert_greedy(loaded.model, prompt, output, f"{loaded.variant}, prompt of {len(prompt)}")


def test_requests_together(loaded: Loaded) -> None:
    """Chunked prefill, decode rows with prefill rows, pages in any order."""
    prompts = make_prompts(PROMPT_LENS)
    num_tokens = [min(8, CONTEXT - len(prompt)) for prompt in prompts]
    for schedule in SCHEDULES:
        outputs = generate(loaded.runner, prompts, num_tokens, schedule)
        for prompt, output, expected in zip(prompts, outputs, num_tokens, strict=True):
            assert len(output) == expected
            assert_greedy(loaded.model, prompt, output, f"{loaded.variant}, {schedule}, prompt of {len(prompt)}")


EDITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
    (
        {"bias_ids": pack_int32([5, 6]), "bias_values": pack_float32([80.0, 79.0]), "repetition_penalty": 1.2},
        {"sequence_bias": {(5,): 80.0, (6,): 79.0}, "repetition_penalty": 1.2},
    ),
    (
        {"bias_ids": pack_int32(range(300)), "bias_values": pack_float32([float("-inf")] * 300)},
        {"suppress_tokens": list(range(300))},
    ),
]


@pytest.mark.parametrize("schedule", SCHEDULES[:3], ids=str)
@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied"])
def test_logits_processing_gives_what_transformers_generates(tmp_path: Path, variant: str, schedule: Schedule) -> None:
    """Rows with one kind of logits processing each, and rows with none; the best token leads clearly in these."""
    model = build_checkpoint(tmp_path, variant)
    runner = load_runner(make_config(tmp_path), lambda text, fraction: None)
    prompts = make_prompts([3, 20, 17, 9, 30])
    params = [SamplingParams(1, temperature=0.0, **ours) for ours, _ in EDITS] + [SamplingParams(1, temperature=0.0)]
    outputs = generate(runner, prompts, 8, schedule, params)
    for prompt, output, theirs in zip(prompts, outputs, [*(theirs for _, theirs in EDITS), {}], strict=True):
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0, **theirs
        )
        assert output == generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied"])
def test_other_page_sizes(tmp_path: Path, variant: str, page_size: int) -> None:
    model = build_checkpoint(tmp_path, variant)
    runner = load_runner(make_config(tmp_path, block_size=page_size), lambda text, fraction: None)
    prompts = make_prompts([1, 30, 65])
    schedule = Schedule(chunk_tokens=20, stagger=1, page_size=page_size)
    for prompt, output in zip(prompts, generate(runner, prompts, 6, schedule), strict=True):
        assert_greedy(model, prompt, output, f"{variant}, pages of {page_size}, prompt of {len(prompt)}")


@pytest.mark.parametrize("name", ["nano-shakespeare-gpt2", "tinystories-656k-llama"])
@pytest.mark.parametrize("schedule", [Schedule(), Schedule(chunk_tokens=5, stagger=1)], ids=str)
def test_trained_models_give_the_captured_ids(shared_dir: Path, name: str, schedule: Schedule) -> None:
    path = shared_dir / "models" / name
    runner = load_runner(make_config(path), lambda text, fraction: None)
    cases = json.loads((path / "golden.json").read_text(encoding="utf-8"))["cases"]
    expected = [case["output_ids"] for case in cases]
    assert (
        generate(runner, [case["prompt_ids"] for case in cases], [len(ids) for ids in expected], schedule) == expected
    )


def test_float16_serves_the_same_tokens_where_the_best_leads_clearly(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path, "llama-mha")
    runner = load_runner(make_config(tmp_path, dtype="float16"), lambda text, fraction: None)
    (prompt,) = make_prompts([20])
    (output,) = generate(runner, [prompt], 1)
    with torch.inference_mode():
        best = model(torch.tensor([prompt])).logits[0, -1].topk(2)
    assert float(best.values[0] - best.values[1]) > 0.1
    assert output == [int(best.indices[0])]
