"""A GGUF file of a vision tower (mmproj, of llama.cpp): its metadata as config.json, and its tensors by our names."""

from typing import Any

from messages.errors import BootError, quoted
from runtime.gguf.gguf_file import GgufFile
from scheduler_proc.computing.hf_config import HfConfig
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
    "num_attention_heads": "attention.head_count",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "image_size": "image_size",
    "patch_size": "patch_size",
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
    }
    side = read("projector.scale_factor")
    config = {
        "vision_config": vision,
        "text_config": {"hidden_size": num_rows("mm.2.weight") or read("projection_dim")},
        "scale_factor": side,
        "downsample_factor": side,
        "vision_feature_layer": read("feature_layer") or read("block_count"),
        "projector_hidden_size": num_rows("mm.1.weight"),
        "projector_use_layernorm": has("mm.input_norm.weight"),
    }
    fields = HfConfig(vision, str(file.paths[0]))
    per_side = fields.count("image_size") // fields.count("patch_size")
    return config | {"mm_tokens_per_image": (per_side // (side or DEFAULT_SIDE)) ** 2 or None}


def names_in_file(names: Names, file: GgufFile) -> Names:
    """Returns the names, with those of the MLP exchanged in files of old converters, which exchanged the tensors."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    is_swapped = down is not None and down.shape[-1] == file.metadata.get("clip.vision.embedding_length")
    return names | {"mlp_in": names["mlp_out"], "mlp_out": names["mlp_in"]} if is_swapped else names
