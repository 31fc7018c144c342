"""The configuration of an adapter as PEFT writes it: what we compute of it, and what is refused."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from messages.errors import errors_as
from runtime.adapter_files import AdapterError
from scheduler_proc.computing.loading.module_patterns import MAX_PATTERNS, PatternError, first_matches

UNSUPPORTED = {
    "use_dora": "DoRA changes the magnitudes of weights",
    "alora_invocation_tokens": "activated LoRA (aLoRA) begins in the middle of a prompt",
    "layer_replication": "it changes the model's number of layers",
    "target_parameters": "it updates parameters that are not linear layers, such as experts",
    "trainable_token_indices": "it replaces embeddings of single tokens; save the whole embedding (modules_to_save)",
    "use_qalora": "QA-LoRA pools the inputs of linear layers",
    "use_bdlora": "block-diagonal LoRA is not supported",
    "arrow_config": "Arrow routes tokens between adapters",
    "kasa_config": "KaSA changes the base model's weights",
    "velora_config": "VeLoRA is not supported",
    "monteclora_config": "MonteCLoRA is not supported",
    "lora_bias": "it has biases",
}
"""The fields that change what is computed, and why they are refused if they are set."""

IGNORED = {
    *("auto_mapping", "base_model_name_or_path", "bias", "corda_config", "eva_config", "exclude_modules"),
    *("ensure_weight_tying", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern"),
    *("layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config"),
    *("megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern"),
    *("alpha_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora"),
    *("merge_weights", "enable_lora"),  # of the first versions
}
"""Fields that are read below, or that change nothing: the weights file itself has the modules and the layers."""

OWN_BASE = (
    "the base model's weights were changed before training; save the adapter with PEFT's conversion to plain LoRA"
)
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")
"""How training may have begun (`init_lora_weights`) so that the base model's weights are still its own."""

PLAIN_KEY = re.compile(r"\^?[\w.-]+")


@dataclass(frozen=True)
class PeftConfig:
    rank: int
    alpha: float
    has_root_scale: bool
    """rsLoRA (arXiv:2312.03732): updates are scaled by alpha / sqrt(rank), not by alpha / rank."""
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    ties_tables: bool

    def of_modules(self, modules: Collection[str]) -> "PeftConfig":
        """Returns the configuration with patterns that are names of these modules. Raises `AdapterError`."""
        ranks, alphas = (
            _by_module(name, pattern, modules)
            for name, pattern in (("rank_pattern", self.rank_pattern), ("alpha_pattern", self.alpha_pattern))
        )
        return replace(self, rank_pattern=ranks, alpha_pattern=alphas)

    def rank_of(self, module: str) -> int:
        return self.rank_pattern.get(module, self.rank)

    def scale_of(self, module: str) -> float:
        alpha, rank = self.alpha_pattern.get(module, self.alpha), self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.has_root_scale else rank)


def read_peft_config(fields: Mapping[str, Any], max_rank: int) -> PeftConfig:
    """Returns what an adapter's adapter_config.json describes. Raises `AdapterError` for what is not supported."""
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"adapter_config.json: peft_type is {kind!r:.60}; only LORA is supported")
    for name, reason in UNSUPPORTED.items():
        if fields.get(name):
            raise AdapterError(f"adapter_config.json: {name}: {reason}, and is not supported")
    if fields.get("bias", "none") != "none":
        raise AdapterError(
            f"adapter_config.json: bias is {fields['bias']!r:.60}: adapters with biases are not supported"
        )
    start = fields.get("init_lora_weights")
    if not any(start is known or (isinstance(known, str) and start == known) for known in PLAIN_STARTS):
        raise AdapterError(f"adapter_config.json: init_lora_weights is {start!r:.60}: {OWN_BASE}")
    unknown = sorted(name for name, value in fields.items() if value and name not in IGNORED)
    if unknown:
        raise AdapterError(f"adapter_config.json: unknown fields: {', '.join(unknown[:6])!r:.200}")
    ranks, alphas = (_read_pattern(fields, name) for name in ("rank_pattern", "alpha_pattern"))
    config = PeftConfig(
        _read_number(fields, "r"),
        _read_number(fields, "lora_alpha"),
        fields.get("use_rslora") is True,
        ranks,
        alphas,
        fields.get("ensure_weight_tying") is True,
    )
    for rank in (config.rank, *ranks.values()):
        if rank != int(rank) or not 1 <= rank <= max_rank:
            raise AdapterError(f"adapter_config.json: rank {rank} is not one of 1 to {max_rank} (--max-lora-rank)")
    return config


def _read_number(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e6:
        raise AdapterError(f"adapter_config.json: {name} is {value!r:.60}; it must be a positive number")
    return value


def _read_pattern(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    pattern = fields.get(name) or {}
    if not isinstance(pattern, dict) or len(pattern) > MAX_PATTERNS:
        raise AdapterError(f"adapter_config.json: {name} is not an object of up to {MAX_PATTERNS} numbers")
    for key in pattern:
        _read_number(pattern, key)
    return pattern


def _by_module(field: str, pattern: Mapping[str, float], modules: Collection[str]) -> dict[str, Any]:
    """Returns the numbers of a field by module: that of the first key that matches the end of its name, as in PEFT.

    Mostly keys are names or their ends; only other keys are used as regular expressions.
    """
    if all(PLAIN_KEY.fullmatch(key) for key in pattern):
        order = {key: index for index, key in enumerate(pattern)}
        ends = {module: [key for key in _ends_of(module) if key in order] for module in modules}
        return {module: pattern[min(keys, key=order.__getitem__)] for module, keys in ends.items() if keys}
    with errors_as(AdapterError, f"adapter_config.json: {field}", of=PatternError):
        found = first_matches([rf"(.*\.)?({key})$" for key in pattern], modules)
    numbers = list(pattern.values())
    return {module: numbers[index] for module, index in found.items()}


def _ends_of(module: str) -> list[str]:
    """Returns the name and what follows each of its dots; with ^ a key is a whole name."""
    words = module.split(".")
    return [f"^{module}", *(".".join(words[first:]) for first in range(len(words)))]
