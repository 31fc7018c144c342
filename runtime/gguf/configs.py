"""config.json of a model in GGUF, made of its metadata: one function per kind of model."""

import struct
from typing import Any, cast

from messages.errors import BootError
from runtime.gguf.gguf_file import GgufFile
from runtime.gguf.header import GgufTensor

ROPE_FACTORS = "rope_freqs.weight"
NORM_EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")


class ModelFields:
    """The metadata of a model, with errors that name the file and the key. Keys begin with the architecture's name."""

    def __init__(self, file: GgufFile, architecture: str):
        self.file = file
        self._architecture = architecture

    def has_key(self, key: str) -> bool:
        return f"{self._architecture}.{key}" in self.file.metadata

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def count(self, key: str, default: int | None = None) -> int:
        """Returns a positive integer."""
        value = self._get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(key, value, "it must be a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a number that is not negative, with the fewest digits that give the same float32."""
        value = self._get(key, default)
        if not isinstance(value, float | int) or not 0 <= value < 1e30:
            raise self.fault(key, value, "it must be a positive number")
        rounded = (float(f"{value:.{digits}g}") for digits in range(1, 10))
        return next((number for number in rounded if _float32(number) == _float32(value)), float(value))

    def flags(self, key: str, num_flags: int, period: int) -> list[bool]:
        """Returns an array of flags. A file may have a number in place of it, as `period`: each such flag is false."""
        value: object = self._get(key, period)
        flags = cast("list[object]", value) if isinstance(value, list) else []
        if len(flags) == num_flags and all(isinstance(flag, bool) for flag in flags):
            return [flag is True for flag in flags]
        return [index % self.count(key, period) > 0 for index in range(1, num_flags + 1)]

    def require(self, key: str, *supported: object) -> None:
        """Raises `BootError` for a value that is not supported; the first is that of a file without the key."""
        value = self._get(key, supported[0])
        if value not in supported:
            raise self.fault(key, value, f"supported is {' and '.join(map(str, supported))}")

    def fault(self, key: str, value: object, reason: str) -> BootError:
        return BootError(f"{self.file.paths[0]}: metadata {self._architecture}.{key} is {str(value)[:60]!r}: {reason}")

    def _get(self, key: str, default: object) -> Any:
        value = self.file.metadata.get(f"{self._architecture}.{key}", default)
        if value is None:
            raise BootError(f"{self.file.paths[0]}: metadata {self._architecture}.{key} is missing")
        return value


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)


def llama_config(fields: ModelFields) -> dict[str, Any]:
    """Returns what Llama and its descendants have in config.json."""
    hidden_size, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden_size // num_heads or 1)
    fields.require("attention.value_length", head_dim)
    fields.require("attention.causal", True)
    fields.require("rope.dimension_count", head_dim)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": fields.count("feed_forward_length"),
        "num_hidden_layers": fields.count("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number(next(filter(fields.has_key, NORM_EPS), NORM_EPS[0])),
        "rope_parameters": _rope_parameters(fields, head_dim),
        "attention_bias": fields.has("blk.0.attn_q.bias"),
        "mlp_bias": fields.has("blk.0.ffn_gate.bias"),
        "hidden_act": "silu",
    }


def dense_llama_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_count", 0)
    return llama_config(fields)


def _rope_parameters(fields: ModelFields, head_dim: int) -> dict[str, Any]:
    """Returns the rotary positions. Llama 3's scaling is a tensor of factors, which "longrope" can express."""
    fields.require("rope.scaling.type", "none", "linear")
    theta, factor = fields.number("rope.freq_base", 10_000.0), fields.number(_linear_key(fields), 0.0) or 1.0
    if not fields.has(ROPE_FACTORS):
        scaling = {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
        return {"rope_theta": theta, **scaling}
    factors = [factor * each for each in _read_floats(fields.file.tensors[ROPE_FACTORS], head_dim // 2)]
    return {
        "rope_type": "longrope",
        "rope_theta": theta,
        "attention_factor": 1.0,
        "original_max_position_embeddings": fields.count("context_length"),
        "short_factor": factors,
        "long_factor": factors,
    }


def _linear_key(fields: ModelFields) -> str:
    """Returns the key of the linear scaling; old files have the second."""
    keys = "rope.scaling.factor", "rope.scale_linear"
    return next((key for key in keys if fields.number(key, 0.0)), keys[0])


def _read_floats(tensor: GgufTensor, num_values: int) -> list[float]:
    if tensor.type.name != "F32" or tensor.shape != (num_values,):
        raise BootError(
            f"{tensor.path}: tensor {tensor.name!r} is {tensor.type.name} {list(tensor.shape)}, not F32 [{num_values}]"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            values = struct.unpack(f"<{num_values}f", file.read(tensor.num_bytes))
    except (OSError, struct.error) as error:
        raise BootError(f"{tensor.path}: cannot be read: {error}") from None
    if not all(0 < value < 1e30 for value in values):
        raise BootError(f"{tensor.path}: tensor {tensor.name!r} has values that are not positive numbers")
    return list(values)


def qwen3_moe_config(fields: ModelFields) -> dict[str, Any]:
    num_chosen = fields.count("expert_used_count")
    fields.require("expert_group_count", 0, 1)
    return {
        **llama_config(fields),
        "num_experts": fields.count("expert_count"),
        "num_experts_per_tok": num_chosen,
        "moe_intermediate_size": fields.count(
            "expert_feed_forward_length", fields.count("feed_forward_length") // num_chosen
        ),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def gpt2_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("attention.causal", True)
    return {
        "n_embd": fields.count("embedding_length"),
        "n_head": fields.count("attention.head_count"),
        "n_layer": fields.count("block_count"),
        "n_positions": fields.count("context_length"),
        "n_inner": fields.count("feed_forward_length"),
        "layer_norm_epsilon": fields.number("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }
