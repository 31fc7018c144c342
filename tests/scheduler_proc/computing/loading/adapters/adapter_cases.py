"""Random adapters in PEFT's layout, and what they make of a model, computed here: W + scale * B A."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

PREFIX = "base_model.model."
SIZE = 0.15


@dataclass
class AdapterCase:
    """An adapter: `config` is its adapter_config.json, `tensors` its weights by their names in PEFT's files."""

    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def write(self, path: Path) -> str:
        path.mkdir(parents=True, exist_ok=True)
        (path / "adapter_config.json").write_text(json.dumps(self.config))
        tensors = {name: tensor.clone().contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, path / "adapter_model.safetensors", {"format": "pt"})
        return str(path)


def find_linears(model: nn.Module) -> dict[str, nn.Module]:
    """Returns the linear layers that PEFT's "all-linear" adapts."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and not name.endswith("lm_head")
    }


def make_adapter(
    model: nn.Module, rank: int = 4, seed: int = 0, modules: Sequence[str] | None = None, **fields: Any
) -> AdapterCase:
    """Returns an adapter of these modules, or of all linear layers; `fields` are those of adapter_config.json."""
    generator = torch.Generator().manual_seed(seed)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": "all-linear", **fields}
    case = AdapterCase(config)
    for name, module in find_linears(model).items():
        if modules is not None and not name.endswith(tuple(modules)):
            continue
        num_out, num_in = _sizes(module)
        own_rank = next((value for key, value in config.get("rank_pattern", {}).items() if name.endswith(key)), rank)
        for part, shape in (("A", (own_rank, num_in)), ("B", (num_out, own_rank))):
            values = torch.randn(shape, generator=generator) * SIZE
            case.tensors[f"{PREFIX}{name}.lora_{part}.weight"] = values
    return case


def merge(model: "transformers.PreTrainedModel", case: AdapterCase) -> "transformers.PreTrainedModel":
    """Returns the model with the updates in its weights, in float32."""
    merged = copy.deepcopy(model)
    for name, module in find_linears(merged).items():
        a_RI = case.tensors.get(f"{PREFIX}{name}.lora_A.weight")
        if a_RI is None:
            continue
        update_OI = scale_of(case.config, name, len(a_RI)) * case.tensors[f"{PREFIX}{name}.lora_B.weight"] @ a_RI
        weight: Any = module.weight
        weight.data += update_OI.T if isinstance(module, Conv1D) else update_OI
    return merged


def scale_of(config: Mapping[str, Any], name: str, rank: int) -> float:
    alphas = config.get("alpha_pattern", {})
    alpha = next((value for key, value in alphas.items() if name.endswith(key)), config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _sizes(module: nn.Module) -> tuple[int, int]:
    weight: Any = module.weight
    return tuple(reversed(weight.shape)) if isinstance(module, Conv1D) else tuple(weight.shape)
