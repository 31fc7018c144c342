"""config.json of a model in GGUF, made of its metadata: one function per kind of model.

Fields whose values are the defaults of families here and of transformers are left out.
"""

import struct
from math import prod
from typing import Any, cast

from messages.errors import BootError, quoted
from runtime.gguf.gguf_file import GgufFile
from runtime.gguf.header import GgufTensor

ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
FACTOR_TENSORS = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
"""Tensors that become a part of config.json."""

MLP_SIZE = ("feed_forward_length", "expert_feed_forward_length")
MAX_COUNT = 1 << 24
"""The maximum of any number in the metadata that decides about loops or memory."""

MAX_LAYERS = 1_000
MAX_HEAD_DIM = 1 << 16
NORM_EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")


class ModelFields:
    """The metadata of a model, with errors that name the file and the key. Keys begin with the architecture's name."""

    def __init__(self, file: GgufFile, architecture: str):
        self.file = file
        self._architecture = architecture

    def has_key(self, key: str) -> bool:
        return f"{self._architecture}.{key}" in self.file.metadata

    def vocabulary(self) -> int:
        """Returns the rows of the embedding."""
        return prod(self.file.tensors["token_embd.weight"].shape[:-1])

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def num_layers(self) -> int:
        return self.count("block_count", most=MAX_LAYERS)

    def layers(self) -> dict[str, int]:
        """Returns how many layers the model has, and how many after them in the file predict further tokens."""
        num_layers = self.num_layers()
        num_nextn = self.whole("nextn_predict_layers", most=num_layers - 1)
        return {"num_hidden_layers": num_layers - num_nextn, "num_nextn_predict_layers": num_nextn}

    def whole(self, key: str, most: int = MAX_COUNT) -> int:
        """Returns an integer from 0 on; 0 for a file without the key."""
        value = self._get(key, 0)
        if type(value) is not int or not 0 <= value <= most:
            raise self.fault(key, value, f"it must be a whole number from 0 to {most}")
        return value

    def count(self, key: str, default: int | None = None, most: int = MAX_COUNT) -> int:
        """Returns a positive integer; a file may have it for each layer, if all have the same or 0."""
        found: Any = self._get(key, default)
        of_layers = cast("list[object]", found if isinstance(found, list) else [found])
        of_layers = [each for each in of_layers if each != 0] or of_layers
        value = of_layers[0] if of_layers and of_layers.count(of_layers[0]) == len(of_layers) else of_layers
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fault(key, value, "it must be a positive whole number")
        if value > most:
            raise self.fault(key, value, f"it must be at most {most}")
        return value

    def counts(self, key: str, num_layers: int, default: int | None = None, least: int = 1) -> list[int]:
        """Returns an integer, at least `least`, for each layer; a file may have one for all."""
        found: Any = self._get(key, default)
        values = cast("list[object]", found if isinstance(found, list) else [found] * num_layers)
        if len(values) != num_layers or not all(type(value) is int and least <= value <= MAX_COUNT for value in values):
            reason = f"it must be {num_layers} whole numbers from {least} to {MAX_COUNT}"
            raise self.fault(key, cast("object", found), reason)
        return cast("list[int]", values)

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
        period = self.count(key, period)
        return [index % period > 0 for index in range(1, num_flags + 1)]

    def experts(self, name: str = "num_experts") -> dict[str, int]:
        """Returns the number of experts under `name`, and of those that a token is given to."""
        return {name: self.count("expert_count"), "num_experts_per_tok": self.count("expert_used_count")}

    def require(self, key: str, *supported: object) -> object:
        """Returns a value. Raises `BootError` if it is not supported; the first is that of a file without the key."""
        value = self._get(key, supported[0])
        if value not in supported:
            raise self.fault(key, value, f"supported is {' and '.join(map(str, supported))}")
        return value

    def fault(self, key: str, value: object, reason: str) -> BootError:
        return BootError(f"{self.file.paths[0]}: metadata {self._architecture}.{key} is {quoted(value)}: {reason}")

    def _get(self, key: str, default: object) -> Any:
        value = self.file.metadata.get(f"{self._architecture}.{key}", default)
        if value is None:
            raise BootError(f"{self.file.paths[0]}: metadata {self._architecture}.{key} is missing")
        return value


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)


def llama_config(fields: ModelFields, *, rotates_parts: bool = False) -> dict[str, Any]:
    """Returns what Llama and its descendants have in config.json.

    `rotates_parts`: of each head a part may be rotated; else files in which this is so are refused.
    """
    hidden_size, num_heads = fields.count("embedding_length"), fields.count("attention.head_count")
    head_dim = fields.count("attention.key_length", hidden_size // num_heads or 1, most=MAX_HEAD_DIM)
    fields.require("attention.value_length", head_dim)
    fields.require("attention.causal", True)
    if not rotates_parts:
        fields.require("rope.dimension_count", head_dim)
    return {
        "hidden_size": hidden_size,
        "intermediate_size": fields.count(next(filter(fields.has_key, MLP_SIZE), MLP_SIZE[0])),
        "num_hidden_layers": fields.num_layers(),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fields.count("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": fields.count("context_length"),
        "rms_norm_eps": fields.number(next(filter(fields.has_key, NORM_EPS), NORM_EPS[0])),
        "rope_parameters": rope_parameters(fields, head_dim),
        "attention_bias": fields.has("blk.0.attn_q.bias"),
        "mlp_bias": fields.has("blk.0.ffn_gate.bias"),
        "hidden_act": "silu",
    }


def dense_llama_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("expert_count", 0)
    return llama_config(fields)


def rope_parameters(fields: ModelFields, head_dim: int) -> dict[str, Any]:
    """Returns the rotary positions."""
    rotated = fields.count("rope.dimension_count", head_dim, most=MAX_HEAD_DIM)
    part = {} if rotated == head_dim else {"partial_rotary_factor": rotated / head_dim}
    return {"rope_theta": fields.number("rope.freq_base", 10_000.0), **part, **_rope_scaling(fields, rotated // 2)}


def _rope_scaling(fields: ModelFields, num_factors: int) -> dict[str, Any]:
    """Returns the scaling. Llama 3's is a tensor of factors in the file, which "longrope" can express.

    As in llama.cpp, a file without a type is scaled linearly, and "none" is not scaled whatever the factor is.
    """
    kind = fields.require("rope.scaling.type", "linear", "none", "yarn", "longrope")
    factor = 1.0 if kind == "none" else fields.number(_linear_key(fields), 0.0) or 1.0
    original = fields.count("rope.scaling.original_context_length", fields.count("context_length"))
    attention_factor = fields.number("rope.scaling.attn_factor", 1.0)
    if fields.has(ROPE_FACTORS):
        factors = [factor * each for each in read_floats(fields.file.tensors[ROPE_FACTORS], num_factors)]
        return _longrope(original, attention_factor, factors, factors)
    if kind == "longrope" or fields.has(LONG_FACTORS):
        both = [fields.file.tensors.get(name) for name in (SHORT_FACTORS, LONG_FACTORS)]
        found = [read_floats(tensor, num_factors) for tensor in both if tensor is not None]
        if len(found) < 2:
            raise fields.fault("rope.scaling.type", kind, f"there is no {SHORT_FACTORS} or no {LONG_FACTORS}")
        return _longrope(original, attention_factor, *found)
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original, **_yarn(fields)}
    return {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}


def _longrope(original: int, attention_factor: float, short: list[float], long: list[float]) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "attention_factor": attention_factor,
        "original_max_position_embeddings": original,
        "short_factor": short,
        "long_factor": long,
    }


def _yarn(fields: ModelFields) -> dict[str, float]:
    """Returns what the file has of YaRN's further parameters."""
    names = {"yarn_attn_factor": "attention_factor", "yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}
    names["yarn_log_multiplier"] = "mscale_all_dim"
    values = {name: fields.number(f"rope.scaling.{key}", 0.0) for key, name in names.items()}
    found = {name: value for name, value in values.items() if value}
    return found | {"mscale": 1.0} if "mscale_all_dim" in found else found


def _linear_key(fields: ModelFields) -> str:
    """Returns the key of the linear scaling; old files have the second."""
    keys = "rope.scaling.factor", "rope.scale_linear"
    return next((key for key in keys if fields.number(key, 0.0)), keys[0])


def read_floats(tensor: GgufTensor, num_values: int) -> list[float]:
    if tensor.type.name != "F32" or prod(tensor.shape) != num_values:
        raise BootError(
            f"{tensor.path}: tensor {tensor.name!r} is {tensor.type.name} {list(tensor.shape)}, not F32 [{num_values}]"
        )
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.offset)
            values = struct.unpack(f"<{num_values}f", file.read(tensor.num_bytes))
    except (OSError, struct.error) as error:
        raise BootError(f"{tensor.path}: cannot be read: {error}") from None
    if not all(0 < value < 1e31 for value in values):
        raise BootError(f"{tensor.path}: tensor {tensor.name!r} has values that are not positive numbers")
    return list(values)


def gpt2_config(fields: ModelFields) -> dict[str, Any]:
    fields.require("attention.causal", True)
    return {
        "n_embd": fields.count("embedding_length"),
        "n_head": fields.count("attention.head_count"),
        "n_layer": fields.num_layers(),
        "n_positions": fields.count("context_length"),
        "n_inner": fields.count("feed_forward_length"),
        "layer_norm_epsilon": fields.number("attention.layer_norm_epsilon"),
    }
