"""Models that llama.cpp's converter has written: config.json and tensors are those of the checkpoint."""

import dataclasses
import hashlib
import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

from messages.errors import BootError
from runtime.gguf.conversion import HfTensor, list_tensors, read_config
from runtime.gguf.gguf_file import read_gguf
from scheduler_proc.computing.loading.gguf_check import check_gguf
from tests.gguf_files import Stored, Typed, write_gguf
from tests.runtime.gguf.test_mutated_headers import LAYER, METADATA

GOLDEN = Path(__file__).parent / "golden"
MODELS: dict[str, Any] = json.loads((GOLDEN / "models.json").read_text())
YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
NEMOTRON_H = "max_position_embeddings", "rms_norm_eps", "rope_parameters", "hidden_act", "num_hidden_layers"
OTHER_FIELDS = {
    "llama3": ["rope_parameters"],
    "exaone4": ["rope_parameters"],
    "gemma2": ["hidden_act"],
    "gemma3": ["hidden_act"],
    "gemma4-shared-kv": ["use_bidirectional_attention"],
    "gemma4-experts": ["use_bidirectional_attention"],
    "qwen35": ["rope_parameters"],
    "qwen35moe": ["rope_parameters"],
    "cohere2": ["rms_norm_eps"],
    "dots1": ["use_qk_norm", "num_nextn_predict_layers"],
    "granitehybrid": ["max_position_embeddings"],
    "granitehybrid-experts": ["max_position_embeddings"],
    "mamba2": ["max_position_embeddings"],
    "nemotron_h": [*NEMOTRON_H],
    "nemotron_h_moe": [*NEMOTRON_H, "intermediate_size"],
    "falcon-h1": ["mamba_norm_before_gate"],
    "lfm2": ["rms_norm_eps", "hidden_act"],
    "deepseek2-lite": ["n_group", "topk_group"],
    "glm4-moe-lite": ["architectures", "model_type"],
    "lfm2moe": ["rms_norm_eps", "hidden_act", "block_auto_adjust_ff_dim"],
}
"""Fields that the checkpoint has in another form, or lacks because its family does not use them."""
INDEXED = "deepseek32", "glm-dsa"
HYBRIDS: dict[str, tuple[int, int, int]] = dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), (2, 6, 4))
"""Key heads, value heads and the size of both."""

DTYPES = {"F32": numpy.float32, "F16": numpy.float16}
TENSORS = {"token_embd.weight": Stored("Q8_0", (40, 64)), "output_norm.weight": Stored("F32", (64,))}
TENSORS |= {f"blk.0.{name}": tensor for name, tensor in LAYER.items()}


def in_checkpoint(found: HfTensor) -> numpy.ndarray[Any, Any]:
    tensor = found.tensor
    dtype = DTYPES[tensor.type.name]
    values = numpy.fromfile(tensor.path, dtype, tensor.num_bytes // dtype().itemsize, offset=tensor.offset)
    values = values.reshape(tensor.shape).astype(numpy.float32)
    if found.interleaved_heads:
        halves = values.reshape(found.interleaved_heads, -1, 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    if found.is_one_more:
        values = values - 1
    if found.is_negative_exp:
        values = numpy.round(numpy.log(-values) * 8) / 8  # as the checkpoint's are
    return values.T if found.is_transposed else values


def digest(values: numpy.ndarray[Any, Any]) -> str:
    return hashlib.sha256(repr(list(values.shape)).encode() + values.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_those_of_the_checkpoint(name: str):
    found = dict[str, Any]()
    for key, tensor in list_tensors(read_gguf(GOLDEN / f"{name}.gguf")).items():
        values = in_checkpoint(tensor)
        found |= {key.format(expert): part for expert, part in enumerate(values)} if "{}" in key else {key: values}
    if name in HYBRIDS:
        found = in_order_of_the_checkpoint(name, found)
    for key in [
        key for key in found if key.endswith("k_b_proj.weight")
    ]:  # [heads, rank, keys] and [heads, values, rank]
        value_HVC = found.pop(key.replace("k_b", "v_b"))
        both = numpy.concatenate((found.pop(key).swapaxes(1, 2), value_HVC), axis=1)
        found[key.replace("k_b", "kv_b")] = both.reshape(-1, both.shape[2])
    expected: dict[str, str] = MODELS[name]["tensors"]
    if name == "qwen35":
        expected = expected | mtp_digests(expected)
    if name in INDEXED:
        expected = expected | nextn_digests(expected, MODELS[name]["config"]["hidden_size"])
    assert {key: digest(values) for key, values in found.items()} == expected


def mtp_digests(tensors: dict[str, str]) -> dict[str, str]:
    """The head of multi-token prediction has copies of the last layer and of the model's norm (`add_mtp`)."""
    last = {key: value for key, value in tensors.items() if key.startswith("model.layers.1.")}
    norms = dict.fromkeys(("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"), tensors["model.norm.weight"])
    size = MODELS["qwen35"]["config"]["hidden_size"]
    return {
        **{key.replace("model.layers.1.", "mtp.layers.0."): value for key, value in last.items()},
        **{f"mtp.{key}.weight": value for key, value in norms.items()},
        "mtp.fc.weight": digest(numpy.zeros((size, 2 * size), numpy.float32)),
    }


def nextn_digests(tensors: dict[str, str], size: int) -> dict[str, str]:
    """Likewise, as DeepSeek V3 has it (`add_nextn`)."""
    last = {key: value for key, value in tensors.items() if key.startswith("model.layers.1.")}
    copies = dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), tensors["model.norm.weight"])
    copies |= {"embed_tokens": tensors["model.embed_tokens.weight"], "shared_head.head": tensors["lm_head.weight"]}
    return {
        **{key.replace("layers.1.", "layers.2."): value for key, value in last.items()},
        **{f"model.layers.2.{key}.weight": value for key, value in copies.items()},
        "model.layers.2.eh_proj.weight": digest(numpy.zeros((size, 2 * size), numpy.float32)),
    }


def in_order_of_the_checkpoint(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Returns tensors with the value heads of each key head together; Qwen3-Next has also its other parts there."""
    num_keys, num_values, size = HYBRIDS[name]
    found = dict(tensors)
    for key, values in tensors.items():
        block, _, part = key.partition(".linear_attn.")
        part = part.removesuffix(".weight")
        if name != "qwen3next" and part not in ("", "norm"):
            axis, unit = int(part == "out_proj"), 1 if part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias") else size
            order = numpy.arange(num_values * unit).reshape(-1, num_keys, unit).swapaxes(0, 1).ravel()
            first = values.shape[axis] - len(order)
            found[key] = values.take([*range(first), *(first + order)], axis)
        elif part == "in_proj_qkv":
            z = f"{block}.linear_attn.in_proj_z.weight"
            parts = [*numpy.split(found.pop(key), [num_keys * size, 2 * num_keys * size]), found.pop(z)]
            heads = numpy.concatenate([each.reshape(num_keys, -1, each.shape[1]) for each in parts], axis=1)
            found[z.replace("_z", "_qkvz")] = heads.reshape(-1, heads.shape[2])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_configuration_is_that_of_the_checkpoint(name: str):
    expected, found = MODELS[name]["config"], read_config(read_gguf(GOLDEN / f"{name}.gguf"))
    if name == "mistral":
        assert found.pop("architectures") == ["LlamaForCausalLM"]
        assert found.pop("model_type") == "llama"
        assert (found.pop("attention_bias"), found.pop("mlp_bias")) == (False, False)
    for key in OTHER_FIELDS.get(name, ()):
        found.pop(key)
    if name.startswith("phi3"):
        rope = found["rope_parameters"]
        rope.setdefault("partial_rotary_factor", 1.0)
        if name == "phi3":
            assert rope.pop("attention_factor") == pytest.approx((1 + math.log(96 / 24) / math.log(24)) ** 0.5)
    head_dim = expected.get("hidden_size", 0) // 4
    expected = {"attention_bias": name.startswith("qwen2"), "mlp_bias": False, "head_dim": head_dim} | expected
    if name == "gpt2":
        expected["n_inner"] = 64  # null in config.json, which means 4 * n_embd
    if name == "minicpm3":
        found["rope_parameters"].pop("attention_factor")
    if name.startswith("qwen35"):
        assert found.pop("has_tiled_value_heads")
    if name in HYBRIDS:
        assert found.pop("num_nextn_predict_layers") == (name == "qwen35")
    if name in ("qwen2moe", "qwen3moe"):
        expected["num_experts"] = expected.get("num_experts", expected.get("num_local_experts"))  # another name for it
    assert {key: expected.get(key) for key in found} == found


def config_of_latents(**fields: Any) -> dict[str, Any]:
    """Returns the configuration of a file with changed metadata; it lacks keys whose value is `None`."""
    file = read_gguf(GOLDEN / "deepseek2.gguf")
    metadata = dict(file.metadata) | {f"deepseek2.{key.replace('__', '.')}": value for key, value in fields.items()}
    found = {key: value for key, value in metadata.items() if value is not None}
    return read_config(dataclasses.replace(file, metadata=found))


def test_deepseek2_files_hold_several_families():
    """Files from before April 2025 have the lengths of heads under the usual keys."""
    mla = {"attention__key_length_mla": None, "attention__value_length_mla": None}
    old = config_of_latents(**mla, attention__key_length=5, attention__value_length=5)
    assert (old["qk_nope_head_dim"], old["qk_rope_head_dim"], old["v_head_dim"]) == (3, 2, 5)
    assert old["model_type"] == "deepseek_v3"
    assert config_of_latents(expert_gating_func=None)["model_type"] == "mistral4"
    assert config_of_latents(expert_gating_func=None, expert_weights_norm=None)["model_type"] == "deepseek_v2"
    grows = config_of_latents(expert_gating_func=1, attention__temperature_scale=0.25, attention__temperature_length=16)
    assert grows["rope_parameters"]["llama_4_scaling_beta"] == 0.25
    assert grows["rope_parameters"]["original_max_position_embeddings"] == 16
    assert config_of_latents(expert_count=None)["model_type"] == "youtu"


@pytest.mark.parametrize("name", INDEXED)
def test_files_with_an_indexer_fit_their_models(name: str):
    """`check_gguf` finds no tensor of the indexer or of the layer that predicts further tokens to be too many."""
    check_gguf(GOLDEN / f"{name}.gguf")


def test_glm_4_7_flash_has_sigmoids_without_a_gating_function():
    file = read_gguf(GOLDEN / "deepseek2.gguf")
    gate = {"deepseek2.expert_gating_func": 0, "deepseek2.block_count": 47}
    table = dataclasses.replace(file.tensors["token_embd.weight"], shape=(154_880, 16))
    glm = dataclasses.replace(
        file, metadata=dict(file.metadata) | gate, tensors=file.tensors | {"token_embd.weight": table}
    )
    assert read_config(glm)["model_type"] == "deepseek_v3"


def test_gates_and_ups_of_gemma_4_may_be_apart():
    file = read_gguf(GOLDEN / "gemma4-experts.gguf")
    whole = file.tensors["blk.0.ffn_gate_up_exps.weight"]
    half = dataclasses.replace(whole, shape=(3, 12, 16), num_bytes=whole.num_bytes // 2)
    tensors = {name: tensor for name, tensor in file.tensors.items() if tensor is not whole}
    for name in ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"):
        tensors[name] = dataclasses.replace(half, name=name)
    found = list_tensors(dataclasses.replace(file, tensors=tensors))
    for part in ("gate_proj", "up_proj"):
        assert found[f"model.layers.0.experts.{{}}.{part}.weight"].tensor.shape == (3, 12, 16)


def test_llama_3_scales_each_frequency_as_transformers_does():
    parameters = read_config(read_gguf(GOLDEN / "llama3.gguf"))["rope_parameters"]
    expected = transformers.LlamaConfig(**MODELS["llama3"]["config"])
    frequencies, scale = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](expected, torch.device("cpu"))
    assert parameters["rope_type"] == "longrope"
    assert parameters["short_factor"] == parameters["long_factor"]
    assert parameters["attention_factor"] == scale == 1.0
    periods = parameters["rope_theta"] ** (torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(
        1.0 / (torch.tensor(parameters["long_factor"]) * periods), frequencies, rtol=1e-6, atol=0
    )


def test_a_number_may_be_provided_for_each_layer(tmp_path: Path):
    """As in files of Granite 4."""
    path = write_gguf(tmp_path / "m.gguf", METADATA | {"llama.attention.head_count_kv": Typed(5, [2, 2])}, TENSORS)
    assert read_config(read_gguf(path))["num_key_value_heads"] == 2


def test_old_files_and_defaults(tmp_path: Path):
    old = {
        key: value
        for key, value in METADATA.items()
        if key not in ("llama.attention.head_count_kv", "llama.rope.freq_base")
    }
    file = read_gguf(write_gguf(tmp_path / "m.gguf", old | {"llama.rope.scale_linear": 2.0}, TENSORS))
    config = read_config(file)
    assert config["num_key_value_heads"] == 4
    assert config["rope_parameters"] == {"rope_theta": 10_000.0, "rope_type": "linear", "factor": 2.0}
    assert config["tie_word_embeddings"]
    assert list_tensors(file)["model.layers.0.self_attn.k_proj.weight"].interleaved_heads == 4


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"general.type": "adapter"}, r"is a LoRA adapter, not a language model \(general.type\)"),
        ({"general.type": "imatrix"}, r"is an importance matrix"),
        ({"general.type": "mmproj"}, r"is an encoder of images or sound \(mmproj\)"),
        ({"general.architecture": "clip"}, r"is an encoder of images or sound \(mmproj\).*general.architecture"),
        ({"general.architecture": "mamba"}, r"general.architecture is 'mamba'; supported are llama, "),
        ({"general.architecture": None}, r"general.architecture is None; supported"),
        ({"general.architecture": 7}, r"general.architecture is 7"),
        ({"llama.block_count": None}, r"metadata llama.block_count is missing"),
        ({"llama.block_count": "two"}, r"metadata llama.block_count is 'two': it must be a positive whole number"),
        ({"llama.feed_forward_length": [96, 64]}, r"llama.feed_forward_length is \[96, 64\]: it must be a positive"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, r"layer_norm_rms_epsilon is nan: it must be"),
        (
            {"llama.rope.scaling.type": "ntk"},
            r"llama.rope.scaling.type is 'ntk': supported is linear and none and yarn",
        ),
        (
            {"llama.rope.scaling.type": "longrope"},
            r"is 'longrope': there is no rope_factors_short.weight or no rope_fac",
        ),
        (
            {"llama.rope.scaling.yarn_beta_fast": -1.0, **YARN},
            r"yarn_beta_fast is -1.0: it must be a positive number",
        ),
        ({"llama.rope.dimension_count": 8}, r"llama.rope.dimension_count is 8: supported is 16"),
        ({"llama.attention.value_length": 32}, r"llama.attention.value_length is 32: supported is 16"),
        ({"llama.attention.causal": False}, r"llama.attention.causal is False: supported is True"),
        ({"llama.expert_count": 8}, r"llama.expert_used_count is missing"),
    ],
)
def test_metadata_that_is_not_supported(tmp_path: Path, metadata: dict[str, Any], complaint: str):
    provided = {key: value for key, value in (METADATA | metadata).items() if value is not None}
    path = write_gguf(tmp_path / "m.gguf", provided, TENSORS)
    with pytest.raises(BootError, match=rf"m\.gguf: .*{complaint}"):
        read_config(read_gguf(path))


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"token_embd.weight": None}, r"has no tensor token_embd.weight; does it hold a vocabulary alone"),
        (
            {"blk.0.ffn_gate_exps.weight": Stored("F32", (2, 8, 8))},
            r"'blk.0.ffn_gate_exps.weight': LlamaForCausalLM has",
        ),
        ({"blk.0.attn_q.scale": Stored("F32", (1,))}, r"tensor 'blk.0.attn_q.scale'"),
        ({"rope_freqs.weight": Stored("F32", (4,))}, r"tensor 'rope_freqs.weight' is F32 \[4\], not F32 \[8\]"),
        ({"rope_freqs.weight": Stored("F16", (8,))}, r"tensor 'rope_freqs.weight' is F16 \[8\], not F32 \[8\]"),
        ({"rope_freqs.weight": Stored("F32", (8,))}, r"'rope_freqs.weight' has values that are not positive"),
    ],
)
def test_tensors_that_are_not_supported(tmp_path: Path, tensors: dict[str, Any], complaint: str):
    provided = {name: tensor for name, tensor in (TENSORS | tensors).items() if tensor is not None}
    path = write_gguf(tmp_path / "m.gguf", METADATA, provided)
    with pytest.raises(BootError, match=rf"m\.gguf: .*{complaint}"):
        list_tensors(read_gguf(path))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The last layer of GLM-4.5; its own tensors are none of the model's."""
    experts = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_gating_func": 2}
    metadata = {key.replace("llama", "glm4moe"): value for key, value in METADATA.items()}
    metadata |= {f"glm4moe.{key}": value for key, value in experts.items()}
    metadata |= {"general.architecture": "glm4moe", "glm4moe.block_count": 2, "glm4moe.nextn_predict_layers": 1}
    last = {name.replace("blk.0.", "blk.1."): tensor for name, tensor in TENSORS.items() if "blk.0." in name}
    tensors = TENSORS | last | {"blk.1.nextn.eh_proj.weight": Stored("Q8_0", (64, 128))}
    file = read_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors))
    assert read_config(file)["num_hidden_layers"] == 1
    with caplog.at_level(logging.INFO):
        assert not any(name.startswith("model.layers.1.") for name in list_tensors(file))
    assert f"{len(last) + 1} tensors of layers that predict further tokens (MTP) are not used" in caplog.text
    metadata["glm4moe.expert_gating_func"] = 1
    with pytest.raises(BootError, match=r"glm4moe.expert_gating_func is 1: supported is 2"):
        read_config(read_gguf(write_gguf(tmp_path / "m.gguf", metadata, tensors)))


def test_experts_that_do_not_fit(tmp_path: Path):
    metadata = {key.replace("llama", "qwen3moe"): value for key, value in METADATA.items()}
    metadata |= {"general.architecture": "qwen3moe", "qwen3moe.expert_count": 4, "qwen3moe.expert_used_count": 2}
    tensors = TENSORS | {"blk.0.ffn_gate_exps.weight": Stored("F32", (3, 8, 8))}
    dense = {f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in dense}
    file = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    assert read_config(read_gguf(file))["moe_intermediate_size"] == 48
    with pytest.raises(BootError, match=r"blk.0.ffn_gate_exps.weight: its shape is \[3, 8, 8\], not \[4, 48, 64\]"):
        check_gguf(file)


@pytest.mark.parametrize(
    ("architecture", "metadata", "fields"),
    [
        ("gemma3", {"block_count": 62, "embedding_length": 5376, "attention.head_count": 32}, {"scale": 168}),
        ("gemma3", {"block_count": 48, "attention.key_length": 256}, {"scale": 256}),
        ("gemma2", {"block_count": 46, "embedding_length": 4608, "attention.head_count": 32}, {"scale": 144}),
        ("gemma2", {"block_count": 4}, {"window": 4096, "kinds": "sfsf", "theta": 1e4}),
        ("gemma3", {"block_count": 7, "attention.sliding_window": 9}, {"window": 9, "kinds": "sssssfs"}),
        ("gemma3", {"block_count": 2}, {"window": None, "kinds": "ff"}),
        ("exaone4", {"block_count": 2}, {"window": None, "kinds": "ff"}),
    ],
)
def test_what_files_with_windows_leave_out(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], fields: dict[str, Any]
):
    provided = {key.replace("llama", architecture): value for key, value in METADATA.items()}
    provided |= {f"{architecture}.{key}": value for key, value in metadata.items()}
    provided["general.architecture"] = architecture
    del provided[f"{architecture}.rope.freq_base"]
    config = read_config(read_gguf(write_gguf(tmp_path / "m.gguf", provided, TENSORS)))
    found = {
        "scale": config.get("query_pre_attn_scalar"),
        "window": config["sliding_window"],
        "kinds": "".join(kind[0] for kind in config["layer_types"]),
        "theta": config["rope_parameters"].get("rope_theta"),
    }
    assert {key: found[key] for key in fields} == fields
