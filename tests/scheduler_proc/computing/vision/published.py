"""Gives a checkpoint of transformers 5 the names that its family has published weights under."""

import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

INTERNVL = {
    r"^vision_tower\.encoder\.layer\.": "vision_model.encoder.layers.",
    r"^vision_tower\.embeddings\.cls_token": "vision_model.embeddings.class_embedding",
    r"^vision_tower\.embeddings\.patch_embeddings\.projection": "vision_model.embeddings.patch_embedding",
    r"^vision_tower\.embeddings\.position_embeddings": "vision_model.embeddings.position_embedding",
    r"layernorm_before": "norm1",
    r"layernorm_after": "norm2",
    r"lambda_": "ls",
    r"attention\.projection_layer": "attn.proj",
    r"attention\.": "attn.",
    r"^multi_modal_projector\.layer_norm": "mlp1.0",
    r"^multi_modal_projector\.linear_1": "mlp1.1",
    r"^multi_modal_projector\.linear_2": "mlp1.3",
}
"""Names in checkpoints of InternVL's own code, by patterns of transformers' names."""


def publish(family: str, model_dir: Path) -> None:
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    if family == "internvl":
        tensors = _publish_internvl(tensors, model_dir / "config.json")
    else:
        tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): one for name, one in tensors.items()}
    save_file(tensors, path, {"format": "pt"})


def _publish_internvl(tensors: dict[str, Tensor], config_path: Path) -> dict[str, Tensor]:
    config = json.loads(config_path.read_text(encoding="utf-8"))
    vision = config["vision_config"]
    vision |= {"qkv_bias": vision.pop("attention_bias"), "qk_normalization": vision.pop("use_qk_norm")}
    vision |= {name: vision[name][0] for name in ("image_size", "patch_size")}
    config["llm_config"] = config.pop("text_config") | {"architectures": ["Qwen2ForCausalLM"]}
    config_path.write_text(json.dumps(config), encoding="utf-8")
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        for pattern, other in INTERNVL.items():
            name = re.sub(pattern, other, name)
        found[name] = tensor
    for name in [name for name in found if ".q_proj." in name]:
        parts = [found.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        found[name.replace("q_proj", "qkv")] = torch.cat(parts)
    return found
