"""Images' rows through both halves: the tokens are those of transformers' models of images with the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from messages.columns import unpack_int32
from messages.ring.steps import Batch
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend
from tests.scheduler_proc.deciding.pages.test_span_columns import axes_of
from tests.scheduler_proc.image_prompts import (
    AXES,
    HYBRID,
    NUM_TOKENS,
    Forward,
    Image,
    ImagePrompt,
    Model,
    build,
    expect,
    forward_axes,
    forward_plain,
    forward_two_way,
    gemma3,
    gemma4,
    qwen,
    row_size,
    serve,
    tokens_of,
)

MTP_NORMS = ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}


class Kind(NamedTuple):
    make: Callable[[], Any]
    forward: Forward = forward_axes
    has_axes: bool = True
    is_two_way: bool = False


KINDS = {
    "qwen3_vl": Kind(qwen("Qwen3VL", rope_parameters=AXES, head_dim=24)),
    "qwen3_5": Kind(qwen("Qwen3_5", **HYBRID)),
    "gemma4 26B": Kind(
        gemma4(use_bidirectional_attention="vision", hidden_size_per_layer_input=0),
        forward_two_way,
        has_axes=False,
        is_two_way=True,
    ),
}
"""Positions with axes and more parts of rows; recurrent states; spans with attention both ways, and windows."""

FAMILIES = {
    **KINDS,
    "qwen2_5_vl": Kind(qwen("Qwen2_5_VL", rope_parameters=AXES)),
    "qwen3_vl with parts for the last layer": Kind(qwen("Qwen3VL", rope_parameters=AXES, num_hidden_layers=3)),
    "qwen3_vl_moe": Kind(qwen("Qwen3VLMoe", rope_parameters=AXES, **EXPERTS)),
    "gemma3": Kind(gemma3, forward_two_way, has_axes=False, is_two_way=True),
    "gemma4 E2B": Kind(gemma4(num_kv_shared_layers=1, hidden_size_per_layer_input=8), forward_two_way, has_axes=False),
}
PARTS: list[tuple[int | Image, ...]] = [
    (5, Image(3, 4, 1), 9),
    (5, Image(4, 3, 1), 9),
    (5, Image(3, 4, 2), 9),
    (Image(1, 7, 3), 2, Image(6, 2, 4), 1, Image(3, 3, 5), 6),
    (14, Image(5, 4, 6), 1),
    (23,),
]
LONGEST = 3
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "in chunks": {"max_num_seqs": 1},
    "preempted": {"num_pages": 18, "block_size": 4, "max_model_len": 64},
    "drafts": {"speculative": "ngram"},
}


class Built(NamedTuple):
    path: Path
    model: Model
    prompts: list[ImagePrompt]
    expected: list[list[int]]

    def serve(self, engine: OfflineEngine, prompts: list[ImagePrompt]) -> list[list[int]]:
        return tokens_of(serve(engine, prompts, row_size(self.model)))


@pytest.fixture(scope="module")
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return make_built(tmp_path_factory.mktemp("model"), request.param)


def make_built(path: Path, family: str) -> Built:
    kind = FAMILIES[family]
    model = build(path, kind.make())
    prompts = [ImagePrompt(*parts, has_axes=kind.has_axes, is_two_way=kind.is_two_way) for parts in PARTS]
    expected = [expect(model, prompt, kind.forward) for prompt in prompts]
    assert expected[0] != expected[2], "the rows change nothing"
    assert (expected[0] != expected[1]) == kind.has_axes, "the grid"
    assert not kind.is_two_way or expect(model, prompts[0], forward_plain) != expected[0], "the directions"
    return Built(path, model, prompts, expected)


of_each_kind = pytest.mark.parametrize("built", KINDS, indirect=True)


@pytest.mark.parametrize(
    ("built", "way"),
    [(family, way) for family in FAMILIES for way in WAYS if family in KINDS or way in ("together", "in chunks")],
    indirect=["built"],
)
def test_the_tokens_are_those_of_transformers(built: Built, way: str) -> None:
    flags = dict(WAYS[way])
    if way == "in chunks":  # an image in both directions is never divided
        flags["max_num_batched_tokens"] = 20 if built.prompts[0].spans[0].is_two_way else 7
    engine = OfflineEngine(make_config(built.path, **flags))
    assert built.serve(engine, built.prompts) == built.expected
    assert built.serve(engine, built.prompts) == built.expected, "from the cache"
    if way == "preempted":
        assert engine.gauges["preemptions"] > 0
    assert engine.gauges["requests"] == engine.gauges["pages_in_use"] == 0


@of_each_kind
def test_steps_on_a_stand_in_for_a_gpu_give_the_same_tokens(built: Built) -> None:
    """Steps without tokens of images are captured, and steps overlap."""
    device = LateDevice()
    with late_backend(lambda: device):
        engine = OfflineEngine(make_config(built.path, max_num_seqs=4, max_num_batched_tokens=32))
    assert built.serve(engine, built.prompts) == built.expected
    assert device.num_replays > 0
    assert engine.gauges["steps_ahead"] > 0


@of_each_kind
def test_a_prompt_continues_from_a_cached_prefix_of_any_length(built: Built) -> None:
    """The prefix is that of a prompt with another token of text: it may end within an image."""
    prompt, expected = built.prompts[LONGEST], built.expected[LONGEST]
    covered = {position for span in prompt.spans for position in range(span.start, span.end)}
    for position in [index for index in range(len(prompt.ids)) if index not in covered]:
        engine, other = OfflineEngine(make_config(built.path, block_size=4)), ImagePrompt(*PARTS[LONGEST])
        other.ids[position], other.spans = 11, prompt.spans
        built.serve(engine, [other])
        (output,) = serve(engine, [prompt], row_size(built.model))
        assert output.token_ids == expected
        cached = output.usage.cached_tokens
        if prompt.spans[0].is_two_way:
            assert not any(span.start < cached < span.end for span in prompt.spans)
        elif built.model.config.model_type != "qwen3_5":  # recurrent states are kept after fewer tokens
            assert cached == position // 4 * 4


def test_a_head_of_multi_token_prediction_has_the_positions_of_the_tokens_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head's weights are those of a layer: its drafts are wrong, but change no token."""
    built = make_built(tmp_path, "qwen3_5")
    weights, size = load_file(tmp_path / "model.safetensors"), 64
    layer = "model.language_model.layers.1."
    own = {name.replace(layer, "mtp.layers.0."): value for name, value in weights.items() if name.startswith(layer)}
    own |= {name: torch.ones(size) for name in MTP_NORMS} | {"mtp.fc.weight": torch.ones(size, 2 * size) / size}
    save_file(weights | {name: value.clone() for name, value in own.items()}, tmp_path / "model.safetensors")
    engine = OfflineEngine(make_config(tmp_path, speculative="mtp"))
    batches: list[Batch] = []
    assert engine._runner.draft_runner is not None
    passes = engine._runner.draft_runner.forward_passes
    prepare = passes.prepare
    monkeypatch.setattr(passes, "prepare", lambda batch, columns: (batches.append(batch), prepare(batch, columns))[1])
    prompt = built.prompts[LONGEST]
    assert built.serve(engine, [prompt]) == [built.expected[LONGEST]]
    axes = axes_of(prompt.spans, len(prompt.ids) + NUM_TOKENS)
    assert any(batch.line_positions for batch in batches)
    assert any(not batch.line_positions for batch in batches)
    for batch in batches:
        columns = [batch.rope_positions, batch.line_positions, batch.column_positions]
        found = zip(*(unpack_int32(column or batch.rope_positions) for column in columns), strict=True)
        assert list(found) == [axes[index] for index in unpack_int32(batch.positions)]
