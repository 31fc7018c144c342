"""Reads from a model's directory, before any process starts: context, vocabulary, end tokens."""

import math
from pathlib import Path
from typing import Any, cast

from messages.config.pooling import PoolingFacts
from messages.config.server import ModelConfig, ModelFacts
from messages.errors import BootError, UsageError, quoted
from runtime.chat_files import read_chat_files
from runtime.model_files import read_config, read_object, refused_errors
from runtime.pooling_files import read_pooling_facts
from runtime.special_tokens import find_token_id, read_fields, special_texts
from supervisor.model.sampling_defaults import find_sampling_defaults

CONTEXT_KEYS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
"""Fields of config.json with the context in tokens; the first that is there decides. MPT has max_seq_len."""
SIZE_KEYS = ("hidden_size", "n_embd", "d_model")

UNKNOWN_SIZE = 1024
"""Numbers of a vector of a model whose files name no size."""

MAX_COUNT = 1 << 24
"""The maximum size of a vocabulary or context in tokens, since memory is allocated accordingly."""


def read_model_facts(model: ModelConfig, model_dir: Path, tokenizer_dir: Path, name: str) -> ModelFacts:
    """Returns the facts of the model in `model_dir`, which clients know as `name` unless flags say otherwise.

    Raises `BootError` for a directory that holds no readable model, `UsageError` for a `--max-model-len` that the
    model cannot serve.
    """
    with refused_errors(model_dir):
        return _read_facts(model, model_dir, tokenizer_dir, name)


def _read_facts(model: ModelConfig, model_dir: Path, tokenizer_dir: Path, name: str) -> ModelFacts:
    config_file = model_dir / "config.json"
    if not config_file.is_file():
        raise BootError(f"{model_dir} contains no model: there is no config.json in it")
    config = read_config(config_file)
    generation_file = model_dir / "generation_config.json"
    generation = read_object(generation_file) if generation_file.is_file() else {}
    vocab_size = _positive_int(config, "vocab_size", config_file)
    if vocab_size is None:
        raise BootError(f"{config_file}: vocab_size is missing{_explain_nested(config)}")
    nested = config.get("text_config")
    found = (
        *_token_ids(generation, generation_file),
        *_token_ids(config, config_file),
        *(_token_ids(cast("dict[str, Any]", nested), config_file) if isinstance(nested, dict) else ()),
        *_eos_of_tokenizer(tokenizer_dir),
    )
    eos_token_ids = tuple(token_id for token_id in dict.fromkeys(found) if token_id < vocab_size)
    is_auto = model.generation_config == "auto"
    sampling, source = find_sampling_defaults(generation, generation_file, name) if is_auto else ({}, "")
    pooling = read_pooling_facts(model_dir, config)
    return ModelFacts(
        model_dir=str(model_dir),
        tokenizer_dir=str(tokenizer_dir),
        served_names=model.served_model_name or (name,),
        vocab_size=vocab_size,
        max_model_len=_max_model_len(model.max_model_len, config, config_file, pooling or PoolingFacts()),
        eos_token_ids=eos_token_ids,
        sampling_defaults=sampling,
        sampling_source=source,
        has_chat_template=read_chat_files(str(tokenizer_dir), model.chat_template).has_template,
        pooling=pooling,
        vector_size=_vector_size(config, config_file, pooling),
        hop_size=_hop_size(config, config_file),
    )


def _vector_size(config: dict[str, Any], file: Path, pooling: PoolingFacts | None) -> int:
    if pooling is not None and pooling.dense:
        return pooling.dense[-1].out_size
    return _hidden_size(config, file)


def _hidden_size(config: dict[str, Any], file: Path) -> int:
    sizes = [_positive_int(config, key, file) for key in SIZE_KEYS]
    return next((size for size in sizes if size is not None), UNKNOWN_SIZE)


def _hop_size(config: dict[str, Any], file: Path) -> int:
    """Counts the residual stream and, in Gemma's models, the inputs of all layers."""
    of_layers = [_positive_int(config, key, file) or 0 for key in ("num_hidden_layers", "hidden_size_per_layer_input")]
    return _hidden_size(config, file) + math.prod(of_layers)


def _max_model_len(requested: int | None, config: dict[str, Any], file: Path, pooling: PoolingFacts) -> int:
    found = {key: _positive_int(config, key, file) for key in CONTEXT_KEYS}
    key, context = next(((key, value) for key, value in found.items() if value is not None), ("", None))
    if context is None:
        if requested is None:
            raise BootError(f"{file}: none of {', '.join(CONTEXT_KEYS)} is there; give the context as --max-model-len")
        return requested
    context, longest = _scaled_contexts(config, pooling.num_positions or context)
    context = min(context, pooling.max_seq_length or context)
    if requested is not None and requested > longest:
        raise UsageError(f"--max-model-len: {requested} is more than the model's context of {longest} tokens ({key})")
    return requested or context


def _scaled_contexts(config: dict[str, Any], context: int) -> tuple[int, int]:
    """Returns the context by default and the longest one, which the scaling of rotary positions may extend.

    YaRN's is the original times the factor, as in vLLM. "dynamic" scales only for a context that is asked for, because
    this changes the positions in shorter ones.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    fields = cast("dict[str, Any]", rope) if isinstance(rope, dict) else {}
    kind, factor = fields.get("rope_type", fields.get("type")), fields.get("factor")
    original = fields.get("original_max_position_embeddings", context)
    if not isinstance(factor, int | float) or not isinstance(original, int) or not 1 <= factor * original <= MAX_COUNT:
        return context, context
    scaled = max(context, int(factor * original))
    return {"yarn": (scaled, scaled), "dynamic": (context, scaled)}.get(str(kind), (context, context))


def _token_ids(config: dict[str, Any], file: Path) -> tuple[int, ...]:
    """Returns `eos_token_id`, which is a number, a list or null; negative numbers mean none."""
    value = config.get("eos_token_id")
    values = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    ids = [entry for entry in values if isinstance(entry, int) and not isinstance(entry, bool)]
    if len(ids) != len(values):
        raise BootError(f"{file}: eos_token_id is {quoted(cast('object', value))}, not a token id or a list of them")
    return tuple(token_id for token_id in ids if token_id >= 0)


def _eos_of_tokenizer(tokenizer_dir: Path) -> tuple[int, ...]:
    text = special_texts(read_fields(tokenizer_dir)).get("eos_token")
    token_id = None if text is None else find_token_id(tokenizer_dir, text)
    return () if token_id is None else (token_id,)


def _positive_int(config: dict[str, Any], key: str, file: Path) -> int | None:
    value = config.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BootError(f"{file}: {key} is {quoted(value)}, not a positive whole number")
    if value > MAX_COUNT:
        raise BootError(f"{file}: {key} is {quoted(value)}, more than this server can hold ({MAX_COUNT})")
    return value


def _explain_nested(config: dict[str, Any]) -> str:
    """Returns the likely reason why a config.json lacks required fields, empty if unknown."""
    if not isinstance(config.get("text_config"), dict):
        return ""
    named = config.get("architectures")
    name = cast("list[object]", named)[0] if isinstance(named, list) and named else config.get("model_type")
    return (
        f": {quoted(name)} has its language model in "
        "text_config. Such models (of images or sound, and text) are not supported; serve a checkpoint of the language "
        "model alone"
    )
