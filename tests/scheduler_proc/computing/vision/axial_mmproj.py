"""Writes GGUF files of towers that rotate by line and column, as llama.cpp's converters write them."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

NamedTensors = Iterator[tuple[str, Tensor]]

COMMON = {
    r"visual\.blocks\.(\d+)\.attn\.qkv": r"v.blk.\1.attn_qkv",
    r"visual\.blocks\.(\d+)\.attn\.proj": r"v.blk.\1.attn_out",
    r"visual\.blocks\.(\d+)\.norm(\d)": r"v.blk.\1.ln\2",
    r"visual\.blocks\.(\d+)\.mlp\.(gate|up|down)_proj": r"v.blk.\1.ffn_\2",
    r"visual\.blocks\.(\d+)\.mlp\.linear_fc1": r"v.blk.\1.ffn_up",
    r"visual\.blocks\.(\d+)\.mlp\.linear_fc2": r"v.blk.\1.ffn_down",
    r"visual\.merger\.(ln_q|norm)": "v.post_ln",
    r"visual\.merger\.(mlp\.0|linear_fc1)": "mm.0",
    r"visual\.merger\.(mlp\.2|linear_fc2)": "mm.2",
    r"visual\.pos_embed": "v.position_embd",
    r"visual\.patch_embed\.proj": "v.patch_embd",
    r"vision_tower\.patch_conv": "v.patch_embd",
    r"vision_tower\.ln_pre": "v.pre_ln",
    r"vision_tower\.transformer\.layers\.(\d+)\.attention\.([qkv])_proj": r"v.blk.\1.attn_\2",
    r"vision_tower\.transformer\.layers\.(\d+)\.attention\.o_proj": r"v.blk.\1.attn_out",
    r"vision_tower\.transformer\.layers\.(\d+)\.attention_norm": r"v.blk.\1.ln1",
    r"vision_tower\.transformer\.layers\.(\d+)\.ffn_norm": r"v.blk.\1.ln2",
    r"vision_tower\.transformer\.layers\.(\d+)\.feed_forward\.(gate|up|down)_proj": r"v.blk.\1.ffn_\2",
    r"multi_modal_projector\.norm": "mm.input_norm",
    r"multi_modal_projector\.patch_merger\.merging_layer": "mm.patch_merger",
    r"multi_modal_projector\.linear_(\d)": r"mm.\1",
    r"vision_tower\.patch_embedder\.input_proj": "v.patch_embd",
    r"vision_tower\.patch_embedder\.position_embedding_table": "v.position_embd.weight",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_(proj|norm)": r"v.blk.\1.attn_\2_\3",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.o_proj": r"v.blk.\1.attn_out",
    r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.(gate|up|down)_proj": r"v.blk.\1.ffn_\2",
    r"vision_tower\.encoder\.layers\.(\d+)\.input_layernorm": r"v.blk.\1.ln1",
    r"vision_tower\.encoder\.layers\.(\d+)\.post_attention_layernorm": r"v.blk.\1.attn_post_norm",
    r"vision_tower\.encoder\.layers\.(\d+)\.pre_feedforward_layernorm": r"v.blk.\1.ln2",
    r"vision_tower\.encoder\.layers\.(\d+)\.post_feedforward_layernorm": r"v.blk.\1.ffn_post_norm",
    r"vision_tower\.std_(bias|scale)": r"v.std_\1",
    r"embed_vision\.embedding_projection": "mm.input_projection",
}
"""The names of tensors in a file by those in a checkpoint, without the end of either."""


def write_mmproj(path: Path, family: str, model_dir: Path, *, exchanges_mlp: bool = False) -> Path:
    """Writes the tower of a checkpoint. `exchanges_mlp`: as old converters named the tensors of the MLP."""
    config = json.loads((model_dir / "config.json").read_bytes())
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", val=True)
    _add_common_fields(writer, config)
    WRITERS[family](writer, config)
    for name, tensor in _converted(load_file(model_dir / "model.safetensors"), family, config):
        if exchanges_mlp:
            name = re.sub("ffn_(up|down)", lambda found: {"up": "ffn_down", "down": "ffn_up"}[found[1]], name)
        writer.add_tensor(name, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_common_fields(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    vision = config["vision_config"]
    counts = {
        "embedding_length": vision["hidden_size"],
        "feed_forward_length": vision["intermediate_size"],
        "block_count": vision.get("depth") or vision["num_hidden_layers"],
        "attention.head_count": vision.get("num_heads") or vision["num_attention_heads"],
        "patch_size": vision["patch_size"],
        "image_size": vision.get("image_size", 224),
        "projection_dim": config["text_config"]["hidden_size"],
    }
    for key, count in counts.items():
        writer.add_uint32(f"clip.vision.{key}", count)


def _write_qwen2_5(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    vision = config["vision_config"]
    writer.add_string("clip.projector_type", "qwen2.5vl_merger")
    writer.add_bool("clip.use_silu", val=True)
    writer.add_uint32("clip.vision.n_wa_pattern", vision["fullatt_block_indexes"][0] + 1)
    writer.add_uint32("clip.vision.window_size", vision["window_size"])


def _write_qwen3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    vision = config["vision_config"]
    writer.add_string("clip.projector_type", "qwen3vl_merger")
    writer.add_bool("clip.use_gelu", val=True)
    writer.add_uint32("clip.vision.spatial_merge_size", vision["spatial_merge_size"])
    deepstack = vision.get("deepstack_visual_indexes", [])
    writer.add_array("clip.vision.is_deepstack_layers", [layer in deepstack for layer in range(vision["depth"])])


def _write_pixtral(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_string("clip.projector_type", "pixtral")
    writer.add_bool("clip.use_silu", val=True)
    writer.add_uint32("clip.vision.spatial_merge_size", config["spatial_merge_size"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)


def _write_gemma4(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_string("clip.vision.projector_type", "gemma4v")
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)


WRITERS: dict[str, Callable[[gguf.GGUFWriter, dict[str, Any]], None]] = {
    "qwen2_5_vl": _write_qwen2_5,
    "qwen3_vl": _write_qwen3,
    "qwen3_5": _write_qwen3,
    "pixtral": _write_pixtral,
    "gemma4": _write_gemma4,
}


def _converted(tensors: dict[str, Tensor], family: str, config: dict[str, Any]) -> NamedTensors:
    num_heads = config["vision_config"].get("num_attention_heads")
    for name, tensor in tensors.items():
        name = name.removeprefix("model.")
        if name.startswith("visual.deepstack_merger_list."):
            number, rest = name.split(".", 3)[2:]
            layer = config["vision_config"]["deepstack_visual_indexes"][int(number)]
            yield f"v.deepstack.{layer}.{rest.replace('linear_', '')}", tensor
            continue
        pattern = next((pattern for pattern in COMMON if re.match(pattern, name)), None)
        if pattern is None:
            continue
        theirs = re.sub(pattern, COMMON[pattern], name, count=1).replace(".linear.", ".")
        theirs = re.sub(r"(attn_[qkv])_proj", r"\1", theirs)
        yield from _changed(theirs, tensor[None] if tensor.dim() == 0 else tensor, family, num_heads)


def _changed(name: str, tensor: Tensor, family: str, num_heads: int) -> NamedTensors:
    if family == "qwen2_5_vl" and "attn_qkv" in name:
        for part, rows in zip("qkv", tensor.chunk(3), strict=True):
            yield name.replace("attn_qkv", f"attn_{part}"), rows
    elif name == "v.patch_embd.weight" and tensor.dim() == 5:
        yield name, tensor[:, :, 0]
        yield f"{name}.1", tensor[:, :, 1]
    elif name == "v.patch_embd.weight" and family == "gemma4":
        size = round((tensor.shape[1] // 3) ** 0.5)
        yield name, tensor.view(len(tensor), size, size, 3).permute(0, 3, 1, 2)
    elif family == "pixtral" and re.search(r"attn_[qk]\.weight", name):
        yield name, tensor.view(num_heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
    else:
        yield name, tensor.to(torch.float32)
