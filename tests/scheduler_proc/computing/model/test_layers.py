"""Layers of every description against a few lines of plain torch, in float32."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from kernels.cpu.library import load_kernels, unload_kernels
from kernels.formats.plain import PlainWeight
from messages.columns import pack_int32, unpack_int32
from scheduler_proc.computing.kv_cache.kv_tensors import allocate_cache, page_bytes
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.description import (
    DenseMlpDescription,
    LayerDescription,
    ModelDescription,
    NormDescription,
    RopeDescription,
)
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription
from scheduler_proc.computing.model.stages import model_parameters
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.packing import make_step_inputs
from scheduler_proc.computing.step.rewritten_batches import as_decode_rows
from tests.checkpoints import VOCAB_SIZE
from tests.scheduler_proc.computing.drive import Row, plan_batch

HIDDEN, HEADS, HEAD_DIM = 32, 4, 8
RMS = NormDescription(kind="rms", size=HIDDEN, eps=1e-5)
LAYER_NORM = replace(RMS, kind="layer")
UNBIASED = replace(LAYER_NORM, has_bias=False)
CENTERED = replace(RMS, is_zero_centered=True)
ATTENTION = AttentionDescription(num_heads=HEADS, num_kv_heads=HEADS, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
ROTATED = replace(ATTENTION, rope=RopeDescription(theta=100.0))
MLP = DenseMlpDescription(size=48, activation="silu_gated")
PRE = LayerDescription(attention_norm=RMS, mixers=(ATTENTION,), mlp_norm=RMS, mlp=MLP)
DELTA = GatedDeltaDescription(num_key_heads=2, num_value_heads=4, key_size=8, value_size=6, num_taps=4, norm_eps=1e-5)
RECURRENT = replace(PRE, mixers=(DELTA,))
MIXER, ATTENDING, MLP_ONLY = replace(RECURRENT, mlp=None), replace(PRE, mlp=None), replace(PRE, mixers=())
BOTH = replace(PRE, mixers=(ATTENTION, DELTA))
WIDE = replace(PRE, mlp=replace(MLP, size=80))
POST = replace(PRE, attention_norm=None, mlp_norm=None, attention_out_norm=RMS, mlp_out_norm=RMS)
CASES: dict[str, tuple[tuple[LayerDescription, ...], dict[str, Any]]] = {
    "before": ((PRE,) * 3, {}),
    "after": ((POST,) * 3, {}),
    "both": ((replace(PRE, attention_out_norm=RMS, mlp_out_norm=RMS),) * 3, {}),
    "both, one plus weight": (
        (
            LayerDescription(
                attention_norm=CENTERED,
                mixers=(replace(ATTENTION, qk_norm=replace(CENTERED, size=HEAD_DIM)),),
                mlp_norm=CENTERED,
                mlp=MLP,
                attention_out_norm=CENTERED,
                mlp_out_norm=CENTERED,
            ),
        )
        * 3,
        {"final_norm": CENTERED, "embedding_scale": HIDDEN**0.5},
    ),
    "layer norm with one plus weight": ((replace(PRE, mlp_norm=replace(LAYER_NORM, is_zero_centered=True)),) * 2, {}),
    "parallel with one norm": ((replace(PRE, attention_norm=LAYER_NORM, mlp_norm=None, is_parallel=True),) * 3, {}),
    "parallel with two norms": ((replace(PRE, is_parallel=True),) * 3, {}),
    "parallel with norms after": ((replace(PRE, is_parallel=True, attention_out_norm=RMS, mlp_out_norm=RMS),) * 2, {}),
    "scaled embedding": ((PRE,) * 2, {"embedding_scale": 3.0}),
    "scaled logits": ((PRE,) * 2, {"logit_scale": 0.25, "has_tied_head": True}),
    "capped logits": ((PRE,) * 2, {"logit_softcap": 2.0}),
    "rotated in some layers": ((PRE, replace(PRE, mixers=(ROTATED,)), PRE), {}),
    "a window": ((replace(PRE, mixers=(replace(ROTATED, window=3),)),) * 3, {}),
    "windows and ropes by layer": (
        (
            replace(PRE, mixers=(replace(ROTATED, window=1),)),
            replace(PRE, mixers=(replace(ATTENTION, rope=RopeDescription(theta=1e4)),)),
            replace(PRE, mixers=(replace(ROTATED, window=5),)),
            PRE,
            replace(PRE, mixers=(replace(ROTATED, window=5),)),
        ),
        {},
    ),
    "capped scores": ((replace(PRE, mixers=(replace(ATTENTION, softcap=0.5),)),) * 3, {}),
    "sinks": ((replace(PRE, mixers=(replace(ATTENTION, has_sinks=True),)),) * 3, {}),
    "sinks, capped scores and a window in some layers": (
        (PRE, replace(PRE, mixers=(replace(ROTATED, has_sinks=True, softcap=1.0, window=4),)), PRE),
        {},
    ),
    "different MLPs": (
        (PRE, replace(PRE, mlp=replace(MLP, size=80)), replace(PRE, mlp=replace(MLP, has_bias=True))),
        {},
    ),
    "different activations": (
        tuple(replace(PRE, mlp=replace(MLP, activation=activation)) for activation in ("silu_gated", "gelu")) * 2
        + (replace(PRE, mlp=replace(MLP, activation="gelu_tanh_gated")),) * 2,
        {},
    ),
    "layer norms without a bias": ((replace(PRE, attention_norm=UNBIASED, mlp_norm=UNBIASED),) * 2, {}),
    "different heads": (
        (
            replace(PRE, mixers=(replace(ROTATED, num_heads=2, num_kv_heads=1, head_dim=24),)),
            replace(PRE, mixers=(replace(ROTATED, num_kv_heads=2, window=3),)),
            PRE,
            replace(PRE, mixers=(replace(ROTATED, num_heads=2, num_kv_heads=1, head_dim=24, window=3),)),
            replace(PRE, mixers=(replace(ROTATED, num_kv_heads=2),)),
            PRE,
        ),
        {},
    ),
    "norms of all query heads and all key heads": (
        (replace(PRE, mixers=(replace(ROTATED, qk_norm=replace(RMS, size=HEAD_DIM), norms_whole_qk=True),)),) * 3,
        {},
    ),
    "recurrent layers": ((RECURRENT, RECURRENT, PRE, RECURRENT, RECURRENT, PRE), {}),
    "recurrent layers at the end": ((RECURRENT, PRE, RECURRENT), {}),
    "recurrent layers without attention and MLPs": ((MIXER,) * 3, {}),
    "one block in a layer": ((MIXER, MLP_ONLY, ATTENDING, MLP_ONLY, MIXER, MLP_ONLY), {}),
    "attention and a recurrent block in a layer": ((BOTH, replace(BOTH, attention_out_norm=RMS), BOTH), {}),
}


def describe(case: str) -> ModelDescription:
    layers, changes = CASES[case]
    whole = ModelDescription(vocab_size=VOCAB_SIZE, hidden_size=HIDDEN, layers=layers, final_norm=RMS)
    return replace(whole, **changes)


def make_values(model: ModelDescription) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        parameter.name: torch.randn(parameter.shape, generator=generator) * (0.3 if len(parameter.shape) > 1 else 1)
        for parameter in model_parameters(model)
    }


def norm(x: Tensor, values: dict[str, Tensor], name: str, description: NormDescription | None) -> Tensor:
    if description is None:
        return x
    scale = values[f"{name}.weight"] + (1 if description.is_zero_centered else 0)
    if description.kind == "rms":
        return functional.rms_norm(x, x.shape[-1:], scale, description.eps)
    return functional.layer_norm(x, x.shape[-1:], scale, values.get(f"{name}.bias"), description.eps)


def rotate(heads_THD: Tensor, theta: float) -> Tensor:
    head_dim = heads_THD.shape[-1]
    angles_TX = torch.arange(len(heads_THD))[:, None] / theta ** (torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angles_TX.cos()[:, None], angles_TX.sin()[:, None]
    first, second = heads_THD.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(x: Tensor, values: dict[str, Tensor], name: str, description: AttentionDescription) -> Tensor:
    num_heads, num_kv_heads, head_dim = description.heads
    heads = (x @ values[f"{name}.qkv.weight"].T).view(len(x), -1, head_dim)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if description.norms_whole_qk:
        query, key = query.flatten(1), key.flatten(1)
    query = norm(query, values, f"{name}.query_norm", description.qk_norm).view(len(x), num_heads, head_dim)
    key = norm(key, values, f"{name}.key_norm", description.qk_norm).view_as(value)
    if description.rope is not None:
        query, key = (rotate(heads, description.rope.theta) for heads in (query, key))
    key, value = (heads.repeat_interleave(num_heads // num_kv_heads, 1) for heads in (key, value))
    scores_HTL = torch.einsum("thd,lhd->htl", query, key) * description.scale
    if description.softcap is not None:
        scores_HTL = (scores_HTL / description.softcap).tanh() * description.softcap
    ones_TL = torch.ones(len(x), len(x), dtype=torch.bool)
    unseen_TL = ones_TL.triu(1) | ones_TL.tril(-(description.window or len(x)))
    weights_HTL = scores_HTL.masked_fill(unseen_TL, float("-inf")).exp()
    totals_HT1 = weights_HTL.sum(-1, keepdim=True)
    if description.has_sinks:
        totals_HT1 += values[f"{name}.sinks"].exp()[:, None, None]
    attended = torch.einsum("htl,lhd->thd", weights_HTL / totals_HT1, value)
    return attended.flatten(1) @ values[f"{name}.attention_out.weight"].T


def apply_mlp(x: Tensor, values: dict[str, Tensor], name: str, description: DenseMlpDescription) -> Tensor:
    inner = functional.linear(x, values[f"{name}.mlp_in.weight"], values.get(f"{name}.mlp_in.bias"))
    if description.is_gated:
        gate, up = inner.chunk(2, dim=-1)
        is_silu = description.activation == "silu_gated"
        inner = (functional.silu(gate) if is_silu else functional.gelu(gate, approximate="tanh")) * up
    else:
        inner = functional.gelu(inner)
    return functional.linear(inner, values[f"{name}.mlp_out.weight"], values.get(f"{name}.mlp_out.bias"))


def recur(x: Tensor, values: dict[str, Tensor], name: str, delta: GatedDeltaDescription) -> Tensor:
    num_heads, num_key_heads, keys = delta.num_value_heads, delta.num_key_heads, delta.num_key_heads * delta.key_size
    mixed, gate = (x @ values[f"{name}.delta_in.weight"].T).split((delta.conv_size, delta.out_size), dim=1)
    weight_X1K = values[f"{name}.conv.weight"][:, None]
    padded = functional.pad(mixed.T, (delta.num_taps - 1, 0))
    convolved = functional.silu(functional.conv1d(padded, weight_X1K, groups=delta.conv_size).T)
    query, key, value = (
        part.view(len(x), num, -1).repeat_interleave(num_heads // num, 1)[None]
        for part, num in zip(
            convolved.split((keys, keys, delta.out_size), 1), (num_key_heads, num_key_heads, num_heads), strict=True
        )
    )
    beta, time = (x @ values[f"{name}.delta_gates.weight"].T).chunk(2, dim=1)
    decay = -values[f"{name}.A_log"].exp() * functional.softplus(time + values[f"{name}.time_bias"])
    options = {"initial_state": None, "output_final_state": False, "use_qk_l2norm_in_kernel": True}
    out, _ = torch_recurrent_gated_delta_rule(query, key, value, decay[None], beta.sigmoid()[None], **options)
    scale = values[f"{name}.delta_norm.weight"]
    normed = functional.rms_norm(out[0], (delta.value_size,), scale, delta.norm_eps).flatten(1)
    return normed * functional.silu(gate) @ values[f"{name}.delta_out.weight"].T


def compute_plainly(model: ModelDescription, values: dict[str, Tensor], token_ids: list[int]) -> Tensor:
    x = values["embedding"][token_ids] * model.embedding_scale
    for index, layer in enumerate(model.layers):
        name = f"layers.{index}"
        normed, update = norm(x, values, f"{name}.attention_norm", layer.attention_norm), torch.zeros_like(x)
        for mixer in layer.mixers:
            if isinstance(mixer, AttentionDescription):
                update = update + attend(normed, values, name, mixer)
            else:
                assert isinstance(mixer, GatedDeltaDescription)
                update = update + recur(normed, values, name, mixer)
        update = norm(update, values, f"{name}.attention_out_norm", layer.attention_out_norm)
        if layer.mlp is None:
            x = x + update
            continue
        assert isinstance(layer.mlp, DenseMlpDescription)
        between = x if layer.is_parallel else x + update
        mlp_input = norm(between, values, f"{name}.mlp_norm", layer.mlp_norm)
        if layer.is_parallel and layer.mlp_norm is None:
            mlp_input = normed
        out = norm(apply_mlp(mlp_input, values, name, layer.mlp), values, f"{name}.mlp_out_norm", layer.mlp_out_norm)
        x = x + update + out
    head = values["embedding"] if model.has_tied_head else values["head"]
    logits = norm(x, values, "final_norm", model.final_norm) @ head.T * model.logit_scale
    return logits if model.logit_softcap is None else (logits / model.logit_softcap).tanh() * model.logit_softcap


@pytest.fixture(params=["torch", "C"])
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """The kernels that launchers call."""
    if request.param == "torch":
        unload_kernels()
    else:
        load_kernels(lambda text, fraction: None)
    yield
    load_kernels(lambda text, fraction: None)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_plain_torch(case: str) -> None:
    """Checks all tokens, then only the last one, for which the last layer computes fewer, then all as decode rows."""
    model = describe(case)
    values = make_values(model)
    token_ids = [5, 9, 200, 31, 7, 7, 100]
    expected = compute_plainly(model, values, token_ids)
    decoder = DescribedDecoder(model, {name: PlainWeight(value) for name, value in values.items()}, 64)
    placement = Placement(torch.device("cpu"), torch.float32)
    cache = allocate_cache(model, 4, 16, placement, num_states=len(token_ids))
    row = Row(0, token_ids, len(token_ids), pages=[0])
    states = {"state_sources": pack_int32([-1]), "state_slots": pack_int32(range(len(token_ids)))}
    last = msgspec.structs.replace(plan_batch(0, [(row, len(token_ids))], 16), **states)
    every = msgspec.structs.replace(last, sample_tokens=pack_int32(range(len(token_ids))))
    with torch.inference_mode():
        for batch in (every, last, as_decode_rows(every)):
            step = make_step_inputs(batch, placement.device)
            logits = decoder.logits(decoder.forward(step, cache.layers))
            torch.testing.assert_close(logits, expected[unpack_int32(batch.sample_tokens)], rtol=1e-4, atol=1e-4)
        # Each token's state has been stored: the row continues from any of them.
        row.num_computed, rest = 4, {"state_sources": pack_int32([3]), "state_slots": pack_int32([-1, -1, 0])}
        batch = msgspec.structs.replace(plan_batch(0, [(row, 3)], 16), **rest)
        step = make_step_inputs(batch, placement.device)
        logits = decoder.logits(decoder.forward(step, cache.layers))
    torch.testing.assert_close(logits, expected[-1:], rtol=1e-4, atol=1e-4)


def test_each_rank_has_the_sinks_of_its_heads() -> None:
    (sinks,) = (parameter for parameter in model_parameters(describe("sinks")) if parameter.name == "layers.1.sinks")
    assert [sinks.part(rank, 2).rows for rank in range(2)] == [(range(2),), (range(2, 4),)]


def test_each_layer_has_a_cache_for_its_own_heads() -> None:
    """Bytes are counted as allocated, and layers with equal heads lie together."""
    model, placement = describe("different heads"), Placement(torch.device("cpu"), torch.float32)
    cache = allocate_cache(model, 4, 16, placement)
    assert [(layer.num_heads, layer.head_dim) for (layer,) in cache.layers] == [(1, 24), (2, 8), (4, 8)] * 2
    assert sum(tensor.nbytes for tensor in cache.tensors) == 4 * page_bytes(model, 16, placement)
    assert [tensor.shape[0] for tensor in cache.tensors] == [2] * 6
    assert cache.layers[3][0].keys.data_ptr() == cache.tensors[0][1].data_ptr()
