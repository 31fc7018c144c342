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
        own_rank = next(
            (value for key, value in config.get("rank_pattern", {}).items() if name.split(".")[-1] == key), rank
        )
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
    alpha = next((value for key, value in alphas.items() if name.split(".")[-1] == key), config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _sizes(module: nn.Module) -> tuple[int, int]:
    weight: Any = module.weight
    return tuple(reversed(weight.shape)) if isinstance(module, Conv1D) else tuple(weight.shape)


def merge_tables(
    merged: "transformers.PreTrainedModel", case: AdapterCase, kind: str
) -> "transformers.PreTrainedModel":
    """Adds an embedding and a head to the adapter; returns the model with them; they are not tied.

    `saved`: whole matrices. `updated`: low-rank updates. `tied`: PEFT's `ensure_weight_tying`, which has an effect on
    tied models; the file has one matrix.
    """
    generator, rank, scale = torch.Generator().manual_seed(9), case.config["r"], 2.0
    embedding, head = (getattr(merged, f"get_{which}_embeddings")() for which in ("input", "output"))
    name = next(name for name, module in merged.named_modules() if module is embedding)
    num_rows, size = embedding.weight.shape

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) * SIZE

    if kind == "updated":
        a, b = draw(rank, num_rows), draw(size, rank)
        case.tensors |= {f"{PREFIX}{name}.lora_embedding_A": a, f"{PREFIX}{name}.lora_embedding_B": b}
        case.tensors[f"{PREFIX}{name}.base_layer.weight"] = embedding.weight.data
        head_a, head_b = draw(rank, size), draw(num_rows, rank)
        case.tensors |= {f"{PREFIX}lm_head.lora_A.weight": head_a, f"{PREFIX}lm_head.lora_B.weight": head_b}
        tables = embedding.weight + scale * (b @ a).T, head.weight + scale * head_b @ head_a
    else:
        tables = draw(num_rows, size), draw(num_rows, size)
        case.tensors[f"{PREFIX}{name}.weight"] = tables[0]
        if kind == "tied":
            is_tied = merged.config.tie_word_embeddings
            tables, case.config["ensure_weight_tying"] = (tables[0], tables[0] if is_tied else head.weight), True
        else:
            case.tensors[f"{PREFIX}lm_head.weight"] = tables[1]
    embedding.weight, head.weight = (nn.Parameter(table.detach().clone()) for table in tables)
    return merged
