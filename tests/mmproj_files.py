"""Writes the tower of a checkpoint of `tests/vision_models.py` as a GGUF file, as llama.cpp's converter does."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file
from torch import Tensor

SWAPPED = re.compile(r"(?<=ffn_)(up|down)")
LINEAR = re.compile(r"v\.blk\.\d+\.(attn_\w+|ffn_\w+)\.weight|mm\.(model\.)?(\d|fc|mlp\.\d|input_projection)\.weight")
"""The tensors that a converter quantizes; others stay float32."""

LLAVA = {
    f"multi_modal_projector.linear_{number}.{suffix}": f"mm.{2 * number - 2}.{suffix}"
    for number in (1, 2)
    for suffix in ("weight", "bias")
} | {"image_newline": "model.image_newline"}
"""Names that the old converter of LLaVA's families gave."""

PROJECTOR_TYPES = {
    "idefics3": "idefics3",
    "gemma3": "gemma3",
    "internvl": "internvl",
    "lfm2_vl": "lfm2",
    "llava": "mlp",
    "llava_next": "mlp",
    "llava_onevision": "mlp",
}


def write_mmproj(
    family: str,
    model_dir: Path,
    path: Path,
    form: str = "F32",
    *,
    is_swapped: bool = False,
    feature_layers: Sequence[int] = (),
) -> Path:
    """Writes the file, with linears in `form`, and returns its path.

    `is_swapped`: `ffn_up` and `ffn_down` are exchanged, as an old converter did.
    """
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    tensors = {name: tensor for name, tensor in load_file(model_dir / "model.safetensors").items() if _is_seen(name)}
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    _write_metadata(writer, family, config, json.loads((model_dir / "preprocessor_config.json").read_bytes()))
    if feature_layers:
        writer.add_array("clip.vision.feature_layer", list(feature_layers))
    num_layers = config["vision_config"]["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, max(num_layers, 4))
    for name, tensor in _converted(family, tensors):
        found = LLAVA.get(name) if PROJECTOR_TYPES[family] == "mlp" else None
        found = found or names.get_name(_published(family, name), try_suffixes=(".weight", ".bias"))
        assert found, name
        if is_swapped:
            found = SWAPPED.sub(lambda match: "up" if match[0] == "down" else "down", found)
        _add(writer, found, tensor.float(), form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _is_seen(name: str) -> bool:
    return bool(re.match(r"(model\.)?(vision_|multi_modal|connector|image_newline)", name))


def _published(family: str, name: str) -> str:
    """Returns the name in checkpoints from before transformers 5, which the converter knows."""
    if family == "idefics3":
        return name
    name = name.removeprefix("model.")
    if family != "internvl":
        inner = name.replace("vision_tower.", "vision_tower.vision_model.")
        return inner.replace("_projection_weight", "_projection.weight")
    for part, number in (("layer_norm", 0), ("linear_1", 1), ("linear_2", 3)):
        name = name.replace(f"multi_modal_projector.{part}", f"mlp1.{number}")
    name = name.replace("vision_tower.", "model.vision_tower.")
    return f"{name}.weight" if "lambda_" in name or "position_embeddings" in name else name


def _converted(family: str, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors as the converter changes them, in its own order."""
    for name, tensor in sorted(tensors.items()):
        if name.endswith("soft_emb_norm.weight"):
            yield name, tensor + 1
        elif family == "lfm2_vl" and name.endswith("patch_embedding.weight"):
            side = round((tensor.shape[1] // 3) ** 0.5)
            yield name, tensor.view(len(tensor), side, side, 3).permute(0, 3, 1, 2)
        else:
            yield name, tensor


def _add(writer: gguf.GGUFWriter, name: str, tensor: Tensor, form: str) -> None:
    values = np.ascontiguousarray(tensor.numpy())
    form = "F16" if form == "Q8_0" and "input_projection" in name else form
    kind = gguf.GGMLQuantizationType[form if values.ndim > 1 and LINEAR.fullmatch(name) else "F32"]
    if kind is gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _write_metadata(writer: gguf.GGUFWriter, family: str, config: dict[str, Any], processor: dict[str, Any]) -> None:
    vision = config["vision_config"]
    sides = [vision.get(name, 256) for name in ("image_size", "patch_size")]
    image_size, patch_size = (side[0] if isinstance(side, list) else side for side in sides)
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(PROJECTOR_TYPES[family])
    writer.add_vision_projection_dim(config["text_config"]["hidden_size"])
    writer.add_vision_image_size(image_size)
    writer.add_vision_patch_size(patch_size)
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_image_mean(processor["image_mean"])
    writer.add_vision_image_std(processor["image_std"])
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", 1e-6))
    writer.add_vision_use_gelu("quick" not in vision.get("hidden_act", ""))
    if family in ("idefics3", "internvl", "lfm2_vl", "gemma3"):
        writer.add_vision_projector_scale_factor(2)
