"""Images' rows through both halves: the tokens are those of transformers' models of images with the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.image_prompts import (
    AXES,
    HYBRID,
    Image,
    ImagePrompt,
    Model,
    build,
    expect,
    forward_axes,
    qwen,
    row_size,
    serve,
    tokens_of,
)

FAMILIES: dict[str, Callable[[], Any]] = {
    "qwen2_5_vl": qwen("Qwen2_5_VL", rope_parameters=AXES),
    "qwen3_vl": qwen("Qwen3VL", rope_parameters=AXES, head_dim=24),
    "qwen3_vl added after the last layer": qwen("Qwen3VL", rope_parameters=AXES, num_hidden_layers=3),
    "qwen3_vl_moe": qwen(
        "Qwen3VLMoe", rope_parameters=AXES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=40
    ),
    "qwen3_5": qwen("Qwen3_5", **HYBRID),
}
PROMPTS = [
    ImagePrompt(5, Image(3, 4, 1), 9, has_axes=True),
    ImagePrompt(5, Image(4, 3, 1), 9, has_axes=True),
    ImagePrompt(5, Image(3, 4, 2), 9, has_axes=True),
    ImagePrompt(Image(1, 7, 3), 2, Image(6, 2, 4), 1, Image(3, 3, 5), has_axes=True),
    ImagePrompt(14, Image(5, 4, 6), 1, has_axes=True),
    ImagePrompt(23),
]
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "in chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 1},
    "preempted": {"num_pages": 18, "block_size": 4, "max_model_len": 64},
    "drafts": {"speculative": "ngram"},
}


class Built(NamedTuple):
    path: Path
    model: Model
    expected: list[list[int]]

    def serve(self, engine: OfflineEngine, prompts: list[ImagePrompt] = PROMPTS) -> list[list[int]]:
        return tokens_of(serve(engine, prompts, row_size(self.model)))


def _build(path: Path, name: str) -> Built:
    model = build(path, FAMILIES[name]())
    expected = [expect(model, prompt, forward_axes) for prompt in PROMPTS]
    assert len({str(output) for output in expected[:4]}) == 4, "the rows or their grid change nothing"
    return Built(path, model, expected)


@pytest.fixture(scope="module", params=FAMILIES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return _build(tmp_path_factory.mktemp("model"), request.param)


@pytest.mark.parametrize("way", WAYS)
def test_the_tokens_are_those_of_transformers(built: Built, way: str) -> None:
    engine = OfflineEngine(make_config(built.path, **WAYS[way]))
    assert built.serve(engine) == built.expected
    assert built.serve(engine) == built.expected, "from the cache"
    if way == "preempted":
        assert engine.gauges["preemptions"] > 0
    assert engine.gauges["requests"] == engine.gauges["pages_in_use"] == 0


def test_steps_on_a_stand_in_for_a_gpu_give_the_same_tokens(built: Built) -> None:
    """Steps without tokens of images are captured, and steps overlap."""
    device = LateDevice()
    with late_backend(lambda: device):
        engine = OfflineEngine(make_config(built.path, max_num_seqs=4, max_num_batched_tokens=32))
    assert built.serve(engine) == built.expected
    assert device.num_replays > 0
    assert engine.gauges["steps_ahead"] > 0


def test_a_prompt_continues_from_a_cached_prefix_of_any_length(built: Built) -> None:
    """The prefix is that of a prompt that ends after each page of the longest one."""
    engine = OfflineEngine(make_config(built.path, block_size=4))
    prompt, expected = PROMPTS[3], built.expected[3]
    for end in range(4, len(prompt.ids), 4):
        first = ImagePrompt(1)
        first.ids = [*prompt.ids[:end], 11]
        first.spans = [span for span in prompt.spans if span.end <= end]
        first.images = prompt.images[: len(first.spans)]
        built.serve(engine, [first])
        assert built.serve(engine, [prompt]) == [expected]
