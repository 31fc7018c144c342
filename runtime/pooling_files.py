"""Reads the files that describe a model's vectors and labels, as sentence-transformers writes them."""

import logging
from pathlib import Path
from typing import Any, Literal, cast

from messages.config.pooling import DenseFacts, PoolingFacts, PoolingKind
from messages.errors import BootError, quoted
from runtime.model_files import read_json, read_object, refused_errors

OFFSET_TYPES = frozenset({"roberta", "xlm-roberta", "camembert", "mpnet"})
"""Model types whose tables of positions begin with `pad_token_id` + 1 rows that no token uses."""

ENCODER_TYPES = OFFSET_TYPES | {"bert", "modernbert"}
CLASSIFIER = "ForSequenceClassification"
GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

POOLING_MODES: dict[str, PoolingKind] = {
    "cls": "cls",
    "mean": "mean",
    "lasttoken": "last",
    "weightedmean": "weighted_mean",
    "max": "max",
}
"""By their names since version 5."""

OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of former versions."""

ACTIVATIONS: dict[str, Literal["identity", "tanh", "sigmoid", "relu", "gelu", "silu"]] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
"""Activations by the names of torch's classes."""

SCORE_ACTIVATIONS: dict[str, Literal["identity", "sigmoid", "softmax"]] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}

SENTENCE_TRANSFORMERS_FILE = "config_sentence_transformers.json"
IGNORED_MODULES = ("Dropout",)
MODULE_ORDER = ("Transformer", "Pooling", "Dense", "Normalize", "LogitScore")
SEQ_LENGTH_FILES = "sentence_*_config.json"
MAX_SHOWN_CHARS = 300
MAX_SEQ_LENGTH = 1 << 24
"""Tokenizers have a far larger number if their model has no limit."""

log = logging.getLogger("sluice.runtime")


def read_pooling_facts(model_dir: Path, config: dict[str, Any]) -> PoolingFacts | None:
    """Returns the facts of the model with this config.json; `None` if it generates text and nothing describes vectors.

    Raises `BootError` for files that describe something else than this server computes.
    """
    names = config.get("architectures")
    name = str(cast("list[object]", names)[0]) if isinstance(names, list) and names else ""
    model_type = str(config.get("model_type"))
    is_encoder = model_type in ENCODER_TYPES or config.get("use_bidirectional_attention") is True
    generates = not is_encoder and (not name or name.endswith(GENERATING))
    modules = _read_modules(model_dir)
    if generates and not modules and not name.endswith(CLASSIFIER):
        return None
    facts = _describe_modules(model_dir, modules, is_encoder=is_encoder)
    facts |= _read_prompts(model_dir)
    if name.endswith(CLASSIFIER):
        way = config.get("classifier_pooling", "cls") if is_encoder else "last"
        if way not in ("cls", "mean", "last"):
            raise BootError(f"config.json: classifier_pooling is {way!r:.60}; supported are cls and mean")
        activation = _score_activation(model_dir, config)
        is_regression = activation is None and config.get("problem_type") == "regression"
        facts |= {"kind": "classify", "pooling": way, "labels": _labels(config), "score_activation": activation}
        facts |= {"is_regression": is_regression}
    positions = config.get("max_position_embeddings")
    if is_encoder and isinstance(positions, int):
        facts["num_positions"] = positions - count_unused_positions(config)
    facts["is_float32"] = is_encoder and (config.get("dtype") or config.get("torch_dtype") or "float32") == "float32"
    max_seq_length = _read_max_seq_length(model_dir)
    return PoolingFacts(is_encoder=is_encoder, generates=generates, max_seq_length=max_seq_length, **facts)


def count_unused_positions(config: dict[str, Any]) -> int:
    """Returns the rows at the beginning of an encoder's table of positions that no token uses."""
    padding = config.get("pad_token_id")
    return 0 if config.get("model_type") not in OFFSET_TYPES else 1 + (padding if isinstance(padding, int) else 1)


def _read_modules(model_dir: Path) -> list[tuple[str, str]]:
    """Returns name and directory of each module, without those that do nothing here."""
    file = model_dir / "modules.json"
    if not file.is_file():
        return []
    found, modules = read_json(file), list[tuple[str, str]]()
    for each in cast("list[Any]", found) if isinstance(found, list) else [found]:
        fields = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
        full_name, path = str(fields.get("type", "")), fields.get("path", "")
        name = full_name.rpartition(".")[2]
        if name in IGNORED_MODULES:
            continue
        if name not in MODULE_ORDER or not full_name.startswith("sentence_transformers."):
            raise BootError(
                f"{file}: the module {quoted(full_name)} is not supported; supported are {_shown(MODULE_ORDER)}"
            )
        if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
            raise BootError(f"{file}: path is {quoted(path)}, not a directory of the model")
        modules.append((name, path))
    order = [MODULE_ORDER.index(name) for name, _ in modules]
    if order != sorted(order) or any(order.count(index) > 1 for index in (0, 1, 3, 4)) or 0 not in order[:1]:
        raise BootError(f"{file}: modules must come in the order {_shown(MODULE_ORDER)}, which may lack some")
    return modules


def _describe_modules(model_dir: Path, modules: list[tuple[str, str]], *, is_encoder: bool) -> dict[str, Any]:
    """Returns the fields that modules decide; without any, those that sentence-transformers has by default."""
    if not modules:
        return {"kind": "embed", "pooling": "mean" if is_encoder else "last", "normalizes": not is_encoder}
    names = [name for name, _ in modules]
    fields: dict[str, Any] = {"kind": "embed" if "Pooling" in names else None, "normalizes": "Normalize" in names}
    for name, path in modules:
        with refused_errors(file := model_dir / path / "config.json"):
            _read_module(fields, name, path, file)
    return fields


def _read_module(fields: dict[str, Any], name: str, path: str, file: Path) -> None:
    """Adds what a module of this name decides."""
    if name == "Pooling":
        fields["pooling"] = _pooling_of(read_object(file), file)
    elif name == "Dense":
        fields["dense"] = (*fields.get("dense", ()), _dense_of(read_object(file), file, path))
    elif name == "LogitScore":
        provided = read_object(file)
        ids = [provided.get(key) for key in ("true_token_id", "false_token_id")]
        fields["score_token_ids"] = tuple(each for each in ids if isinstance(each, int))


def _pooling_of(fields: dict[str, Any], file: Path) -> PoolingKind:
    modes = fields.get("pooling_mode") or [mode for flag, mode in OLD_MODES.items() if fields.get(flag)] or ["mean"]
    modes: list[str] = [modes] if isinstance(modes, str) else [*map(str, modes)]
    if len(modes) != 1 or modes[0] not in POOLING_MODES:
        raise BootError(
            f"{file}: pooling by {_shown(modes)} is not supported; supported is one of {_shown(POOLING_MODES)}"
        )
    if fields.get("include_prompt") is False:
        raise BootError(f"{file}: include_prompt is false: pooling without the tokens of the prompt is not supported")
    return POOLING_MODES[modes[0]]


def _dense_of(fields: dict[str, Any], file: Path, directory: str) -> DenseFacts:
    full_name = str(fields.get("activation_function", "Tanh"))
    activation = ACTIVATIONS.get(full_name.rpartition(".")[2])
    if activation is None:
        raise BootError(f"{file}: activation_function is {full_name:.60}; supported are {_shown(ACTIVATIONS)}")
    if fields.get("use_residual") or fields.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise BootError(f"{file}: use_residual and inputs other than sentence_embedding are not supported")
    sizes = [fields.get(key) for key in ("in_features", "out_features")]
    match sizes:
        case [int(in_size), int(out_size)] if 0 < in_size <= 1 << 20 and 0 < out_size <= 1 << 20:
            has_bias = fields.get("bias", True) is not False
            return DenseFacts(
                directory=directory, in_size=in_size, out_size=out_size, activation=activation, has_bias=has_bias
            )
        case _:
            raise BootError(f"{file}: in_features and out_features are {_shown(sizes)}, not two positive integers")


def _read_prompts(model_dir: Path) -> dict[str, Any]:
    file = model_dir / SENTENCE_TRANSFORMERS_FILE
    if not file.is_file():
        return {}
    fields = read_object(file)
    found: Any = fields.get("prompts") or {}
    provided = cast("dict[str, Any]", found) if isinstance(found, dict) else {"": 0}
    default, similarity = fields.get("default_prompt_name"), fields.get("similarity_fn_name") or "cosine"
    prompts = {name: text or "" for name, text in provided.items() if isinstance(text, str | None)}
    if len(prompts) != len(provided):
        raise BootError(f"{file}: prompts is not an object of texts")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise BootError(
            f"{file}: default_prompt_name is {quoted(default)}, which is none of prompts: {_shown(prompts)}"
        )
    if similarity not in ("cosine", "dot", "euclidean", "manhattan"):
        raise BootError(
            f"{file}: similarity_fn_name is {quoted(similarity)}; supported: cosine, dot, euclidean, manhattan"
        )
    size = fields.get("truncate_dim") or 0
    if type(size) is not int or not 0 <= size <= 1 << 20:
        raise BootError(f"{file}: truncate_dim is {quoted(size)}, not a number of values")
    return {"prompts": prompts, "default_prompt": default, "similarity": similarity, "truncate_dim": size}


def _read_max_seq_length(model_dir: Path) -> int | None:
    """Returns the limit of sentence-transformers or, without one, the tokenizer's."""
    for file, key in (
        *((file, "max_seq_length") for file in sorted(model_dir.glob(SEQ_LENGTH_FILES))),
        (model_dir / "tokenizer_config.json", "model_max_length"),
    ):
        fields = read_object(file) if file.is_file() else {}
        if fields.get("do_lower_case") and key == "max_seq_length":
            log.warning("%s: do_lower_case is ignored: texts are lowered only if the tokenizer does so", file)
        length = fields.get(key)
        if isinstance(length, int | float) and 1 <= length <= MAX_SEQ_LENGTH:
            return int(length)
    return None


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    named = config.get("id2label")
    names = cast("dict[str, Any]", named) if isinstance(named, dict) else {}
    number = len(names) or config.get("num_labels") or 2
    if not isinstance(number, int) or not 1 <= number <= 1 << 16:
        raise BootError(f"config.json: num_labels is {quoted(number)}, not a number of labels")
    return tuple(str(names.get(str(index), f"LABEL_{index}")) for index in range(number))


def _score_activation(model_dir: Path, config: dict[str, Any]) -> Literal["identity", "sigmoid", "softmax"] | None:
    """Returns what a file of sentence-transformers names, in its version 5.4 another one, or the kind of problem."""
    own, file = config.get("sentence_transformers"), model_dir / SENTENCE_TRANSFORMERS_FILE
    fields = cast("dict[str, Any]", own) if isinstance(own, dict) else {}
    provided = read_object(file) if file.is_file() else {}
    name = provided.get(
        "activation_fn", fields.get("activation_fn", config.get("sbert_ce_default_activation_function"))
    )
    if name is not None:
        activation = SCORE_ACTIVATIONS.get(str(name).rpartition(".")[2])
        if activation is None and str(name).startswith("torch."):
            raise BootError(f"{model_dir}: activation_fn is {name!r:.60}; supported are {_shown(SCORE_ACTIVATIONS)}")
        return activation  # without one, sentence-transformers runs no code of others and has its default
    match config.get("problem_type"):
        case "single_label_classification":
            return "softmax"
        case "multi_label_classification":
            return "sigmoid"
        case _:
            return None


def _shown(values: Any) -> str:
    return ", ".join(map(str, values))[:MAX_SHOWN_CHARS] or "none"
