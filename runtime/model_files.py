"""Reads the files of a model directory. Errors name the file and, if known, its actual content."""

import json
import logging
from collections.abc import Generator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast

from messages.errors import BootError, SluiceError


class WeightFiles(NamedTuple):
    """Names of the weight files of a format: the file of a whole model, and a pattern that includes shards."""

    whole: str
    pattern: str


WEIGHT_FILES = {
    "safetensors": WeightFiles("model.safetensors", "model*.safetensors"),
    "pt": WeightFiles("pytorch_model.bin", "pytorch_model*.bin"),
    "gguf": WeightFiles("model.gguf", "model*.gguf"),
}
"""By load format, the preferred one first."""

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")
OTHER_FILES = ("*.json", "*.jinja", "*.model", "*.txt")
"""Patterns of configuration, tokenizer and chat template files."""

IMAGE_MODELS = (
    "Gemma3 Gemma4 Idefics3 InternVL KimiK25 Kimi_K25 Lfm2Vl Llava LlavaNext LlavaOnevision Mistral3 Qwen2VL "
    "Qwen2_5_VL Qwen3VL Qwen3VLMoe Qwen3_5 Qwen3_5Moe SmolVLM"
)
TEXT_ALONE = frozenset(f"{name}ForConditionalGeneration" for name in IMAGE_MODELS.split()) | {"InternVLChatModel"}
"""Models of images and text whose language model is a family."""

LLAMA_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32_000}
TEXT_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"vocab_size": 262_208, "max_position_embeddings": 131_072},
    "gemma4_text": {"vocab_size": 262_144, "max_position_embeddings": 131_072},
    "llama": {**LLAMA_SIZES, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": {
        **LLAMA_SIZES,
        "intermediate_size": 14_336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
}
"""By the language model's type, fields that the config.json of a model of images may lack, as LLaVA's does."""

LFS_POINTER = b"version https://git-lfs.github.com/spec/"

log = logging.getLogger("sluice.runtime")


def is_weight_file(name: str) -> bool:
    return any(fnmatch(name, files.pattern) for files in WEIGHT_FILES.values())


def read_json(file: Path) -> object:
    """Returns the JSON value in `file`. Raises a `BootError` that names the file."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise BootError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BootError(f"{file}: {find_other_content(file) or f'is not valid JSON: {error}'}") from None
    except RecursionError:
        raise BootError(f"{file}: is nested too deeply for a model file") from None


def read_object(file: Path) -> dict[str, Any]:
    """Returns the JSON object in `file`. Raises a `BootError` that names the file."""
    value = read_json(file)
    if not isinstance(value, dict):
        raise BootError(f"{file}: is not a JSON object")
    return cast("dict[str, Any]", value)


def read_config(file: Path) -> dict[str, Any]:
    """Returns the fields of a config.json, those of the language model first if the model is one of `TEXT_ALONE`.

    Its model type then decides its family, since the architecture is that of the whole.
    """
    fields = read_object(file)
    named = fields.get("architectures")
    name = str(cast("list[object]", named)[0]) if isinstance(named, list) and named else ""
    text: Any = fields.get("text_config") or fields.get("llm_config")  # the latter is InternVL's own name
    if name not in TEXT_ALONE or not isinstance(text, dict):
        return fields
    text, tied = cast("dict[str, Any]", text), "tie_word_embeddings"  # which either of them may say
    kind = text.get("model_type")
    own: dict[str, Any] = {"architectures": list[str](), "model_type": kind, tied: fields.get(tied) or text.get(tied)}
    return {**TEXT_DEFAULTS.get(str(kind), {}), **text, **fields, **own}


@contextmanager
def refused_errors(where: Path | str) -> Generator[None]:
    """Raises `BootError` that names `where` for every exception in the block, which reads a model's files.

    Files can be wrong in more ways than are checked one by one.
    """
    try:
        yield
    except SluiceError:
        raise
    except Exception as error:
        log.debug("%s cannot be used", where, exc_info=True)
        reason = next(iter(str(error).strip().splitlines()), "") or "no reason given"
        text = f"{where}: cannot be used, it may be damaged: {type(error).__name__}: {reason:.300}"
        raise BootError(f"{text} (--log-level debug shows where)") from error


def find_other_content(file: Path) -> str | None:
    """Returns the actual content of an unreadable model file, with the remedy; `None` if unknown."""
    try:
        with file.open("rb") as opened:
            beginning = opened.read(len(LFS_POINTER))
    except OSError:
        return None
    if beginning == LFS_POINTER:
        return f"is a pointer of Git LFS, not the file itself: run `git lfs pull` in {file.parent}"
    return None
