"""A GGUF file of a vision tower (mmproj, of llama.cpp): its metadata as config.json, and its tensors by our names."""

from typing import Any

from messages.errors import BootError, quoted
from runtime.gguf.gguf_file import GgufFile
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
    "attention_norm": "ln1",
    "mlp_norm": "ln2",
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


def read_config(file: GgufFile) -> dict[str, Any]:
    """Returns config.json as far as the families' descriptions need it. Raises `BootError` for other files."""
    if file.architecture != "clip":
        where = file.paths[0]
        raise BootError(f"{where}: metadata general.architecture is {quoted(file.architecture)}, not clip (--mmproj)")

    def read(key: str) -> Any:
        return file.metadata.get(f"clip.vision.{key}")

    vision = {field: read(key) for field, key in KEYS.items()}
    if not (file.metadata.get("clip.use_gelu") or file.metadata.get("clip.use_silu")):
        vision["hidden_act"] = "quick_gelu"
    return {
        "vision_config": vision,
        "text_config": {"hidden_size": read("projection_dim")},
        "scale_factor": read("projector.scale_factor"),
    }


def names_in_file(names: Names, file: GgufFile) -> Names:
    """Returns the names, with those of the MLP exchanged in files of old converters, which exchanged the tensors."""
    down = file.tensors.get("v.blk.0.ffn_down.weight")
    is_swapped = down is not None and down.shape[-1] == file.metadata.get("clip.vision.embedding_length")
    return names | {"mlp_in": names["mlp_out"], "mlp_out": names["mlp_in"]} if is_swapped else names
