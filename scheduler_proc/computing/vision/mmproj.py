"""A GGUF file of a vision tower (mmproj, of llama.cpp): its metadata as config.json, and its tensors by our names."""

from math import prod
from typing import Any

from messages.errors import BootError, quoted
from runtime.gguf.gguf_file import GgufFile
from scheduler_proc.computing.hf_config import MAX_LAYERS, HfConfig
from scheduler_proc.computing.vision.description import CLASS_TOKEN, PATCHES, POSITIONS, POST_NORM, PRE_NORM
from scheduler_proc.computing.vision.family import Exact, Names

MMPROJ_NAMES: Names = {
    PATCHES: "v.patch_embd",
    POSITIONS: Exact("v.position_embd.weight", "reshaped"),
    CLASS_TOKEN: Exact("v.class_embd", "reshaped"),
    PRE_NORM: "v.pre_ln",
    POST_NORM: "v.post_ln",
    "layers": "v.blk.{}.",
    "qkv": ("attn_q", "attn_k", "attn_v"),
    "attention_out": "attn_out",
    "query_norm": "attn_q_norm",
    "key_norm": "attn_k_norm",
    "attention_norm": "ln1",
    "attention_out_norm": "ls1",
    "mlp_norm": "ln2",
    "mlp_out_norm": "ls2",
    "mlp_in": "ffn_up",
    "mlp_out": "ffn_down",
}
"""The names of tensors in the files of all families; projectors differ."""

KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "depth": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rms_norm_eps": "attention.layer_norm_epsilon",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "spatial_merge_size": "spatial_merge_size",
    "window_size": "window_size",
    "out_hidden_size": "projection_dim",
}
"""The fields of config.json's `vision_config`, by name, and the keys, after `clip.vision.`, of their values."""


DEFAULT_SIDE = 4
"""The side of Gemma 3's squares of patches where a file does not have it."""


def read_config(file: GgufFile) -> dict[str, Any]:
    """Returns config.json as far as the families' descriptions need it. Raises `BootError` for other files."""
    if file.architecture != "clip":
        where = file.paths[0]
        raise BootError(f"{where}: metadata general.architecture is {quoted(file.architecture)}, not clip (--mmproj)")

    def read(key: str) -> Any:
        return file.metadata.get(f"clip.vision.{key}")

    def num_rows(name: str) -> int | None:
        return file.tensors[name].shape[0] if name in file.tensors else None

    use_gelu, use_silu = (file.metadata.get(f"clip.use_{kind}") for kind in ("gelu", "silu"))
    has = file.tensors.__contains__
    vision = {field: read(key) for field, key in KEYS.items()} | {
        "hidden_act": "silu" if use_silu else None if use_gelu else "quick_gelu",
        "model_type": "clip_vision_model" if has("v.class_embd") else "siglip_vision_model",
        "attention_bias": has("v.blk.0.attn_q.bias"),
        "use_qk_norm": has("v.blk.0.attn_q_norm.weight"),
        "norm_type": "layer_norm" if has("v.blk.0.ln1.bias") else "rms_norm",
        "num_patches": num_rows("v.position_embd.weight"),
        **_read_tensors(file),
    }
    period, deepstack = read("n_wa_pattern"), read("is_deepstack_layers")
    if isinstance(period, int) and period > 0:
        vision["fullatt_block_indexes"] = list(range(period - 1, MAX_LAYERS, period))
    if isinstance(deepstack, list):
        vision["deepstack_visual_indexes"] = [layer for layer, is_read in enumerate(deepstack) if is_read]
    side = read("projector.scale_factor")
    config = {
        "model_type": "mistral3" if has("mm.patch_merger.weight") else "llava",
        "vision_config": vision,
        "text_config": {"hidden_size": num_rows("mm.2.weight") or read("projection_dim")},
        "spatial_merge_size": read("spatial_merge_size"),
        "multimodal_projector_bias": has("mm.2.bias"),
        "scale_factor": side,
        "downsample_factor": side,
        "vision_feature_layer": read("feature_layer") or read("block_count"),
        "projector_hidden_size": num_rows("mm.1.weight"),
        "projector_use_layernorm": has("mm.input_norm.weight"),
    }
    fields = HfConfig(vision, str(file.paths[0]))
    per_side = fields.count("image_size") // fields.count("patch_size")
    return config | {"mm_tokens_per_image": (per_side // (side or DEFAULT_SIDE)) ** 2 or None}


def _read_tensors(file: GgufFile) -> dict[str, Any]:
    """Returns the fields of `vision_config` that follow from the tensors of a file."""
    tensors, fields = file.tensors, dict[str, Any]()
    if "v.patch_embd.weight.1" in tensors:
        fields["temporal_patch_size"] = 1  # each of two tensors is the kernel of a frame
    if (positions := tensors.get("v.position_embd.weight")) is not None and len(positions.shape) > 1:
        fields["position_embedding_size"] = fields["num_position_embeddings"] = positions.shape[-2]
    up, size = tensors.get("v.blk.0.ffn_up.weight"), file.metadata.get("clip.vision.embedding_length")
    if up is not None and isinstance(size, int) and size > 0:
        fields["intermediate_size"] = prod(up.shape) // size  # old files give 0
    fields["standardize"] = "v.std_bias" in tensors
    fields["use_clipped_linears"] = "v.blk.0.attn_q.input_min" in tensors
    return fields


def names_in_file(names: Names, file: GgufFile) -> Names:
    """Returns the names, with those of the MLP exchanged in files of old converters, which exchanged the tensors."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    is_swapped = down is not None and down.shape[-1] == file.metadata.get("clip.vision.embedding_length")
    if not is_swapped:
        return names
    (*gate, up), down = _parts(names["mlp_in"]), names["mlp_out"]
    return names | {"mlp_in": [*gate, str(down)], "mlp_out": str(up)}


def _parts(names: Any) -> list[Any]:
    return [names] if isinstance(names, str) else list(names)
