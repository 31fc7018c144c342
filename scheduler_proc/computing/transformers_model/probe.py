"""Finds out how a model of transformers calls attention: its heads, windows and options, and what no kernel here has.

Transformers gives attention a mask, and a window only as an argument for some of its own kernels. So the window is read
from the function that would make the mask.

Shape legend: T tokens, H query heads, G key/value heads, D values per head, Q queries, K keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from messages.errors import BootError
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import (
    LayerDescription,
    ModelDescription,
    NormDescription,
)
from scheduler_proc.computing.transformers_model.attention import attention_by, call_attention, read_options

PROBE = "sluice_probe"
NUM_TOKENS = 4
MAX_QUERIES = 64
"""The number of positions whose masks are read."""

KNOWN = {"scaling", "softcap", "s_aux", "sliding_window", "position_ids"}
"""Arguments of attention that kernels here have, or that change nothing: windows are read from masks."""


@dataclass(frozen=True)
class AttentionCall:
    """A call of attention in a forward pass."""

    module: nn.Module
    attention: AttentionDescription


class Probe:
    """The attention of a forward pass that only collects the calls. Raises `BootError` for what is not supported."""

    def __init__(self, max_model_len: int):
        self.calls: list[AttentionCall] = []
        self._max_model_len = max_model_len

    def make_mask(self, *, q_length: int, kv_length: int, mask_function: Any, **_: Any) -> Tensor:
        """Returns a mask [1, 1, Q, K] that is filled with the length of its window."""
        window = find_window(mask_function, self._max_model_len)
        return torch.full((1, 1, q_length, kv_length), window, dtype=torch.int64)

    def __call__(
        self, module: nn.Module, query_1HTD: Tensor, key_1GTD: Tensor, value_1GTD: Tensor, mask: Any, arguments: Any
    ) -> Tensor:
        where = f"attention call {len(self.calls)} ({type(module).__name__})"
        _refuse_arguments(where, arguments)
        if key_1GTD.shape[2] != query_1HTD.shape[2] or value_1GTD.shape[1] != key_1GTD.shape[1]:
            raise BootError(f"{where} reads other tokens' keys or values than its own: not supported")
        if not isinstance(mask, Tensor) or mask.dtype != torch.int64 or bool((mask != mask.flatten()[0]).any()):
            raise BootError(f"{where} has a mask of its own: not supported")
        window = int(mask.flatten()[0])
        options = read_options(query_1HTD, arguments, window if window < self._max_model_len else None)
        attention = AttentionDescription(
            num_heads=query_1HTD.shape[1],
            num_kv_heads=key_1GTD.shape[1],
            head_dim=max(query_1HTD.shape[3], value_1GTD.shape[3]),
            scale=options.scale,
            window=options.window,
            softcap=options.softcap,
            has_sinks=options.sinks is not None,
        )
        self.calls.append(AttentionCall(module, attention))
        return value_1GTD.new_zeros(1, query_1HTD.shape[2], query_1HTD.shape[1], value_1GTD.shape[3])


def _refuse_arguments(where: str, arguments: Any) -> None:
    """Raises `BootError` for arguments that change the result, and that no kernel here has."""
    for name, value in arguments.items():
        has_effect = value is not None and value is not False and not (name == "dropout" and value == 0)
        if (has_effect and name not in KNOWN | {"is_causal"}) or (name == "is_causal" and value is False):
            shown = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise BootError(f"{where} has the argument {name} ({shown}): not supported")
    if not isinstance(arguments.get("scaling", 1.0), float | int):
        raise BootError(f"{where} has no number as its scale: not supported")


def find_window(mask_function: Any, max_model_len: int) -> int:
    """Returns how many last tokens the mask lets a token attend to, itself included; `max_model_len` if it sees all.

    Raises `BootError` for a mask of another kind.
    """
    key_1K = torch.arange(max_model_len)[None]
    query_Q1 = torch.linspace(0, max_model_len - 1, min(max_model_len, MAX_QUERIES)).long()[:, None]
    zero = torch.zeros(1, 1, dtype=torch.int64)
    seen_QK = mask_function(zero, zero, query_Q1, key_1K).expand(len(query_Q1), max_model_len)
    window = int(seen_QK[-1].sum())
    if not torch.equal(seen_QK, (key_1K <= query_Q1) & (key_1K > query_Q1 - window)):
        raise BootError(
            f"its attention mask is neither causal nor a sliding window in a context of {max_model_len} tokens (it may "
            "be one of chunks, or see later tokens): not supported; a shorter --max-model-len may be"
        )
    return window


def probe_calls(module: Any, max_model_len: int) -> list[AttentionCall]:
    """Returns the calls of attention in a forward pass, in order. Raises `BootError` for what is not supported."""
    probe = Probe(max_model_len)
    AttentionInterface.register(PROBE, call_attention)
    AttentionMaskInterface.register(PROBE, probe.make_mask)
    module.set_attn_implementation(PROBE)
    tokens = torch.arange(min(NUM_TOKENS, max_model_len), device=module.device)[None]
    with attention_by(probe), torch.inference_mode():
        module(input_ids=tokens, position_ids=tokens, use_cache=False)
    return probe.calls


def describe(module: Any, calls: list[AttentionCall]) -> ModelDescription:
    """Returns a model whose layers are the calls of attention: the rest is transformers'."""
    config = module.config.get_text_config()
    return ModelDescription(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=tuple(LayerDescription(mixers=(call.attention,)) for call in calls),
        final_norm=NormDescription(kind="rms", size=config.hidden_size, eps=0.0),
    )


def find_layers(module: nn.Module, calls: list[AttentionCall]) -> tuple[str, nn.ModuleList]:
    """Returns the layers with their name. Raises `BootError` if one of them does not call attention."""
    attentions = {call.module for call in calls}
    for name, layers in module.named_modules():
        if isinstance(layers, nn.ModuleList) and any(attentions & set(layer.modules()) for layer in layers):
            for index, layer in enumerate(layers):
                if not attentions & set(layer.modules()):
                    raise BootError(
                        f"layer {index} ({type(layer).__name__}) does not call attention, so it may keep another state "
                        "than K and V: not supported"
                    )
            return name, layers
    raise BootError("no layer calls attention: what the model keeps of earlier tokens is not K and V")
