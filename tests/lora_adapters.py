"""Random LoRA adapters for the tiny Llama, and the checkpoint that one of them makes when it is merged into it.

Nothing here imports torch or PEFT.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

RANK, ALPHA = 4, 12
TARGETS = "q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"


def write_adapter(path: Path, model_dir: Path, seed: int) -> str:
    """Writes an adapter of some of the model's linear layers; returns its directory."""
    path.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, weight in load_file(model_dir / "model.safetensors").items():
        if name.split(".")[-2] in TARGETS:
            module = f"base_model.model.{name.removesuffix('.weight')}"
            for part, shape in (("A", (RANK, weight.shape[1])), ("B", (weight.shape[0], RANK))):
                tensors[f"{module}.lora_{part}.weight"] = rng.normal(0, 0.1, shape).astype(np.float32)
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(TARGETS)}
    (path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def write_merged(path: Path, model_dir: Path, adapter: str) -> None:
    """Writes the checkpoint whose weights include the adapter's updates: W + alpha / rank * B A."""
    shutil.copytree(model_dir, path)
    updates, weights = (
        load_file(Path(adapter) / "adapter_model.safetensors"),
        load_file(model_dir / "model.safetensors"),
    )
    for name in weights:
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in updates:
            product = updates[f"{module}.lora_B.weight"] @ updates[f"{module}.lora_A.weight"]
            weights[name] = weights[name] + np.float32(ALPHA / RANK) * product
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
