"""Small trained models: our perplexity of held-out text is transformers', and each mistake made on purpose shows in it.

In a model of noise, a wrong expert or a window that is off by one changes no best token.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from kernels.arguments.paged_kv import PagedKV
from messages.ring.requests import UserMsg
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import family_loader
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families import deepseek_v3
from scheduler_proc.computing.model.latent_attention_description import LatentAttentionDescription
from scheduler_proc.deciding_half import make_scheduler
from tests.checkpoints import make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.computing.model.trained.train_models import CONTEXT, FOLDER, HELD_OUT_ROWS
from tests.scheduler_proc.computing.reference import assert_greedy

TOLERANCE = 1e-4
"""The largest relative difference of the perplexity."""
MAX_PERPLEXITY = {"deepseek_v3": 16}
"""It was trained for half as many steps."""

BFLOAT16_TOLERANCE = 5e-3
STEP_TOKENS = 100
"""Prompts are computed in chunks, of two prompts in some steps."""

Weights = dict[str, Tensor]
Fields = dict[str, Any]
Mistake = Callable[[Fields, Weights], object]
"""Changes the fields of config.json or the weights."""
Spoil = Callable[[Iterable[tuple[Tensor, ...]]], object]
"""Changes the states of the layers: each has the tail of a convolution and a matrix for each head."""


def swap_rows(weights: Weights, name: str) -> None:
    weights[name][[0, 1]] = weights[name][[1, 0]]


def change_window(fields: Fields, change: int) -> None:
    fields["sliding_window"] += change


def linear_name(layer: int, name: str) -> str:
    return f"model.layers.{layer}.linear_attn.{name}"


def change_delta(weights: Weights, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Changes a weight of the second layer, which has Gated DeltaNet."""
    weights[linear_name(1, name)] = change(weights[linear_name(1, name)]).contiguous()


def tile_value_heads(weights: Weights) -> None:
    """Value head h of the first layer reads key head h % 2, as in GGUF, in place of h // 3."""
    num_heads, num_keys, size = 6, 128, 32
    heads = torch.arange(num_heads).view(2, 3).T.flatten()
    values = (heads[:, None] * size + torch.arange(size)).flatten()
    channels = torch.cat((torch.arange(num_keys), num_keys + values))
    for names, order in (
        (("in_proj_qkv.weight", "conv1d.weight"), channels),
        (("in_proj_z.weight",), values),
        (("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"), heads),
    ):
        for name in names:
            weights[linear_name(0, name)] = weights[linear_name(0, name)][order]
    weights[linear_name(0, "out_proj.weight")] = weights[linear_name(0, "out_proj.weight")][:, values].contiguous()


def separate_gates(weights: Weights) -> None:
    """All query heads come before all gates, in place of each query head before its gate."""
    name = "model.layers.3.self_attn.q_proj.weight"
    weights[name] = weights[name].unflatten(0, (4, 2, 32)).transpose(0, 1).flatten(0, 2).contiguous()


MISTAKES: dict[str, dict[str, Mistake]] = {
    "qwen3_5": {
        "value heads are tiled": lambda fields, weights: tile_value_heads(weights),
        "two value heads forget at each other's rate": lambda fields, weights: swap_rows(
            weights, linear_name(1, "A_log")
        ),
        "the rate is GGUF's": lambda fields, weights: change_delta(weights, "A_log", lambda rate: -rate.exp()),
        "time has no bias": lambda fields, weights: change_delta(weights, "dt_bias", torch.zeros_like),
        "the update is not scaled by beta": lambda fields, weights: change_delta(
            weights, "in_proj_b.weight", torch.zeros_like
        ),
        "taps are in reverse": lambda fields, weights: change_delta(
            weights, "conv1d.weight", lambda taps: taps.flip(-1)
        ),
        "the convolution has a tap less": lambda fields, weights: weights[linear_name(1, "conv1d.weight")][
            ..., 0
        ].zero_(),
        "norms are not centred at zero": lambda fields, weights: weights["model.norm.weight"].sub_(1),
        "the gated norm is centred at zero": lambda fields, weights: change_delta(
            weights, "norm.weight", lambda weight: weight + 1
        ),
        "queries come before gates": lambda fields, weights: separate_gates(weights),
        "the whole head is rotated": lambda fields, weights: fields["rope_parameters"].update(
            partial_rotary_factor=1.0
        ),
    },
    "qwen3_moe": {
        "shares are not renormalized": lambda fields, weights: fields.update(norm_topk_prob=False),
        "two experts are swapped": lambda fields, weights: swap_rows(weights, "model.layers.1.mlp.gate.weight"),
        "one expert of each token": lambda fields, weights: fields.update(num_experts_per_tok=1),
    },
    "gemma3": {
        "the window is one longer": lambda fields, weights: change_window(fields, 1),
        "the window is one shorter": lambda fields, weights: change_window(fields, -1),
        "one rope for all layers": lambda fields, weights: fields["rope_parameters"].update(
            sliding_attention=fields["rope_parameters"]["full_attention"]
        ),
        "the global rope is not scaled": lambda fields, weights: fields["rope_parameters"]["full_attention"].update(
            rope_type="default"
        ),
        "the layer of the whole context is another": lambda fields, weights: fields["layer_types"].insert(
            0, fields["layer_types"].pop()
        ),
    },
    "gpt_oss": {
        "the window is one longer": lambda fields, weights: change_window(fields, 1),
        "the window is one shorter": lambda fields, weights: change_window(fields, -1),
        "one head has no sink": lambda fields, weights: weights["model.layers.1.self_attn.sinks"][:1].fill_(-1e4),
        "experts have no biases": lambda fields, weights: weights[
            "model.layers.1.mlp.experts.gate_up_proj_bias"
        ].zero_(),
        "two experts are swapped": lambda fields, weights: swap_rows(weights, "model.layers.1.mlp.router.weight"),
        "YaRN has another factor": lambda fields, weights: fields["rope_parameters"].update(factor=8.0),
        "the activation is SiLU": lambda fields, weights: fields.update(swiglu_alpha=1.0),
    },
    "deepseek_v3": {
        "halves are rotated, not neighbours": lambda fields, weights: fields.update(rope_interleave=False),
        "experts are of all groups": lambda fields, weights: fields.update(topk_group=4),
        "shares are not renormalized": lambda fields, weights: fields.update(norm_topk_prob=False),
        "shares are not scaled": lambda fields, weights: fields.update(routed_scaling_factor=1.0),
        "experts have no correction": lambda fields, weights: weights[
            "model.layers.1.mlp.gate.e_score_correction_bias"
        ].zero_(),
        "keys come after values": lambda fields, weights: swap_keys_and_values(weights),
    },
}


def swap_keys_and_values(weights: Weights) -> None:
    name = "model.layers.1.self_attn.kv_b_proj.weight"
    weights[name] = weights[name].unflatten(0, (4, 2, 32)).flip(1).flatten(0, 2).contiguous()


LATENT_MISTAKES: dict[str, Callable[[ModelDescription], ModelDescription]] = {
    "YaRN does not scale scores": lambda model: change_blocks(
        model, lambda block: {"scale": 48**-0.5} if isinstance(block, LatentAttentionDescription) else {}
    ),
    "norms of latents have the epsilon of the others": lambda model: change_blocks(
        model, lambda block: {"norm_eps": 1e-2} if isinstance(block, LatentAttentionDescription) else {}
    ),
    "a group is as good as its best expert": lambda model: change_blocks(
        model, lambda block: {"num_best_of_group": 1} if isinstance(block, ExpertMlpDescription) else {}
    ),
}
"""Mistakes that no field of config.json and no weight can make."""


def change_blocks(model: ModelDescription, change: Callable[[Any], Fields]) -> ModelDescription:
    """Returns the model whose blocks have the fields that `change` returns for them."""

    def changed(block: Any) -> Any:
        return dataclasses.replace(block, **change(block))

    layers = (
        dataclasses.replace(layer, mixers=tuple(map(changed, layer.mixers)), mlp=changed(layer.mlp))
        for layer in model.layers
    )
    return dataclasses.replace(model, layers=tuple(layers))


@functools.cache
def read_held_out() -> Tensor:
    """Returns rows of tokens [rows, context]."""
    ids = torch.tensor(list((FOLDER / "held_out.txt").read_bytes()))
    assert len(ids) == HELD_OUT_ROWS * CONTEXT
    return ids.view(-1, CONTEXT)


@pytest.fixture
def held_out() -> Tensor:
    return read_held_out()


class Service:
    """A scheduler and a runner; prompts are computed in chunks."""

    def __init__(self, path: Path, **flags: Any):
        config = make_config(path, **{"max_num_seqs": 4, "max_num_batched_tokens": STEP_TOKENS, **flags})
        self.runner = load_runner(config, lambda text, fraction: None)
        self.scheduler, self.inbox = make_scheduler(config, self.runner), Inbox()

    def finish(self, requests: Sequence[UserMsg], after_step: Callable[[], object] = lambda: None) -> Inbox:
        """Runs the requests to their ends and returns what has come back."""
        for request in requests:
            self.scheduler.receive(request)
        while (batch := self.scheduler.schedule()) is not None:
            self.scheduler.commit(self.runner.run(batch))
            self.inbox.take(self.scheduler.pop_replies())
            after_step()
        return self.inbox


def our_perplexity(path: Path, held_out: Tensor, spoil: Spoil = lambda states: None, **flags: Any) -> float:
    """Returns the perplexity of the rows; `spoil` changes the recurrent states after each step."""
    prompts = enumerate(held_out.tolist())
    requests = [user_msg(uid, prompt, max_tokens=0, num_prompt_logprobs=0, echo=True) for uid, prompt in prompts]
    service = Service(path, **flags)
    forward_passes = service.runner.forward_passes
    assert isinstance(forward_passes, CpuForwardPasses)
    states = [kept for layer in forward_passes.cache.layers for kept in layer if kept and not isinstance(kept, PagedKV)]
    inbox = service.finish(requests, lambda: spoil(states))
    logprobs = [logprob for own in inbox.prompt_logprobs.values() for _, logprob, _ in own]
    assert len(logprobs) == HELD_OUT_ROWS * (CONTEXT - 1)
    return math.exp(-sum(logprobs) / len(logprobs))


class Trained:
    """A model as transformers computes it in float32."""

    def __init__(self, name: str):
        self.name, self.path, held_out = name, FOLDER / name, read_held_out()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        with torch.inference_mode():
            logits_BLV = self.model(held_out).logits[:, :-1]
        self.perplexity = cross_entropy(logits_BLV.flatten(0, 1), held_out[:, 1:].flatten()).exp().item()


@functools.cache
def load_trained(name: str) -> Trained:
    return Trained(name)


@pytest.fixture(params=MISTAKES)
def trained(request: pytest.FixtureRequest) -> Trained:
    """Loaded once: pytest would make a fixture again for tests that name its parameter themselves."""
    return load_trained(request.param)


def test_perplexity_is_that_of_transformers(trained: Trained, held_out: Tensor) -> None:
    assert trained.perplexity < MAX_PERPLEXITY.get(trained.name, 7), "the model has learned little: noise has 256"
    assert our_perplexity(trained.path, held_out) == pytest.approx(trained.perplexity, rel=TOLERANCE)
    in_bfloat16 = our_perplexity(trained.path, held_out, dtype="bfloat16")
    assert in_bfloat16 == pytest.approx(trained.perplexity, rel=BFLOAT16_TOLERANCE)


@pytest.mark.parametrize(
    ("trained", "mistake"), [(name, mistake) for name in MISTAKES for mistake in MISTAKES[name]], indirect=["trained"]
)
def test_a_mistake_shows(trained: Trained, mistake: str, held_out: Tensor, tmp_path: Path) -> None:
    """The perplexity of the model with the mistake differs by more than twice the tolerance: mostly, it rises."""
    fields = json.loads((trained.path / "config.json").read_text(encoding="utf-8"))
    weights = load_file(trained.path / "model.safetensors")
    MISTAKES[trained.name][mistake](fields, weights)
    (tmp_path / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file(weights, tmp_path / "model.safetensors")
    change = our_perplexity(tmp_path, held_out) / trained.perplexity - 1
    print(f"{mistake}: {change:+.2%}")
    assert abs(change) > 2 * TOLERANCE


@pytest.mark.parametrize("mistake", LATENT_MISTAKES)
@pytest.mark.parametrize("trained", ["deepseek_v3"], indirect=True)
def test_a_mistake_in_the_description_shows(
    trained: Trained, mistake: str, held_out: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe = deepseek_v3.FAMILY.describe
    family = dataclasses.replace(
        deepseek_v3.FAMILY, describe=lambda fields, length: LATENT_MISTAKES[mistake](describe(fields, length))
    )
    monkeypatch.setattr(family_loader, "find_family", lambda hf_config: family)
    change = our_perplexity(trained.path, held_out) / trained.perplexity - 1
    print(f"{mistake}: {change:+.2%}")
    assert abs(change) > 2 * TOLERANCE


def change_states(states: Iterable[tuple[Tensor, ...]], part: int, change: Callable[[Tensor], object]) -> None:
    for layer in states:
        change(layer[part])


STATE_MISTAKES: dict[str, Spoil] = {
    "the tail is lost between steps": lambda states: change_states(states, 0, Tensor.zero_),
    "the matrix is lost between steps": lambda states: change_states(states, 1, Tensor.zero_),
    "the oldest input of the tail is lost": lambda states: change_states(states, 0, lambda tail: tail[:, 0].zero_()),
    "heads have each other's matrices": lambda states: change_states(states, 1, lambda all: all.copy_(all.roll(1, 1))),
    "the matrix is transposed": lambda states: change_states(states, 1, lambda all: all.copy_(all.mT.clone())),
}


@pytest.mark.parametrize("mistake", STATE_MISTAKES)
@pytest.mark.parametrize("trained", ["qwen3_5"], indirect=True)
def test_a_mistake_in_states_shows(trained: Trained, mistake: str, held_out: Tensor) -> None:
    change = our_perplexity(trained.path, held_out, STATE_MISTAKES[mistake]) / trained.perplexity - 1
    print(f"{mistake}: {change:+.2%}")
    assert abs(change) > 2 * TOLERANCE


WAYS: dict[str, tuple[Fields, str]] = {
    "together": ({}, "steps"),
    "in chunks of 7": ({"max_num_batched_tokens": 7}, "steps"),
    "preempted": ({"num_pages": 48}, "preemptions"),
    "with drafts": ({"speculative": "ngram", "num_pages": 1024}, "accepted_tokens"),
}
"""Flags of schedulers that cut the steps of four requests in other ways, and what they count then."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trained", ["qwen3_5"], indirect=True)
def test_turns_of_chats_are_the_same_however_steps_are_cut(trained: Trained, way: str, held_out: Tensor) -> None:
    """The second turn continues the answer to the first, with the state at the last page boundary before it."""
    flags, counter = WAYS[way]
    service = Service(trained.path, **flags)
    prompts = [held_out[row, : 60 + row].tolist() for row in range(4)]
    for turn, num_tokens in enumerate((200, 60)):
        inbox = service.finish([user_msg(4 * turn + row, prompt, num_tokens) for row, prompt in enumerate(prompts)])
        for row, prompt in enumerate(prompts):
            output, usage = inbox.tokens[4 * turn + row, 0], inbox.finished[4 * turn + row, 0].usage
            assert len(output) == num_tokens
            assert_greedy(trained.model, prompt, output, way)
            if turn and way != "preempted":
                assert usage.cached_tokens == (len(prompt) - 31) // 16 * 16
            prompts[row] = [*prompt, *output, *held_out[row, 300:330].tolist()]
    assert service.scheduler.gauges()[counter] > 0


def test_greedy_text_is_that_of_transformers(trained: Trained, held_out: Tensor) -> None:
    """200 tokens after a prompt that is longer than the window."""
    prompt = held_out[0, :120].tolist()
    output = Service(trained.path).finish([user_msg(0, prompt, max_tokens=200)]).tokens[0, 0]
    assert len(output) == 200
    assert_greedy(trained.model, prompt, output, trained.name)
