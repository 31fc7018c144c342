"""A GGUF file as a Hugging Face checkpoint: config.json, and its tensors by name.

A tensor that the architecture does not name is refused, since the model would compute other text without it.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from messages.errors import BootError, quoted
from runtime.gguf.architectures import ARCHITECTURES, MIXTRAL, Architecture
from runtime.gguf.configs import FACTOR_TENSORS, ModelFields
from runtime.gguf.gguf_file import GgufFile
from runtime.gguf.header import GgufTensor
from runtime.gguf.layer_names import CONVOLUTION, MATRICES, VECTORS

log = logging.getLogger("sluice.gguf")

LAYER = re.compile(r"blk\.(?P<number>\d+)\.(?P<name>.+)", re.ASCII)

MTP, JOIN = "mtp.", "nextn.eh_proj"
MTP_LAYER = re.compile(r"model\.layers\.\d+\.(mtp\.)?", re.ASCII)
"""Begins the names of a head of multi-token prediction, until they are those of a checkpoint; some have the same."""

OTHER_FILES = {
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix",
    "mmproj": "an encoder of images or sound (mmproj)",
    "clip": "an encoder of images or sound (mmproj)",
}
"""Files that are no language models, by general.type or general.architecture."""


@dataclass(frozen=True, slots=True)
class HfTensor:
    """A tensor of a checkpoint, as a part of a GGUF file, and what to undo.

    `interleaved_heads`: the number of heads if in each head the rows of its first and second half alternate, 0 if
    they do not. `is_transposed`: the checkpoint has [in, out], the file [out, in]. `is_one_more`: values are
    larger by 1 in the file. `is_negative_exp`: x is -exp(x) in the file.
    """

    tensor: GgufTensor
    interleaved_heads: int = 0
    is_transposed: bool = False
    is_one_more: bool = False
    is_negative_exp: bool = False


IN_BLOCKS = "is_in_blocks"
"""The field of a written config.json that holds `is_in_blocks`."""

MAX_PLAIN = 1 / 8
"""The maximum size of plain numbers, in 16 bits each, as a part of that of the blocks."""


def find_architecture(file: GgufFile) -> Architecture:
    """Returns the architecture of a model. Raises `BootError` for one that is not supported, and for other files."""
    name = file.architecture
    for key in ("general.type", "general.architecture"):
        value: object = file.metadata.get(key)
        if isinstance(value, str) and value in OTHER_FILES:
            raise BootError(f"{file.paths[0]}: is {OTHER_FILES[value]}, not a language model ({key})")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise BootError(f"{file.paths[0]}: metadata general.architecture is {quoted(name)}; supported are {supported}")
    if "token_embd.weight" not in file.tensors:
        raise BootError(f"{file.paths[0]}: has no tensor token_embd.weight; does it hold a vocabulary alone?")
    return MIXTRAL if name == "llama" and file.metadata.get("llama.expert_count") else ARCHITECTURES[name]


def read_config(file: GgufFile) -> dict[str, Any]:
    """Returns the model's config.json. Raises `BootError` that names the key or tensor which is not supported."""
    architecture = find_architecture(file)
    fields = ModelFields(file, file.metadata["general.architecture"])
    return {
        "architectures": [architecture.hf_name],
        "model_type": architecture.model_type,
        "vocab_size": fields.vocabulary(),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **architecture.config(fields),
    }


def is_in_blocks(file: GgufFile) -> bool:
    """True if the C kernels compute in the blocks of nearly all weights; the rest become plain numbers."""
    sizes = [(tensor.type.is_in_blocks, tensor) for tensor in file.tensors.values()]
    plain_bytes = sum(2 * prod(tensor.shape) for is_computed, tensor in sizes if not is_computed)
    return MAX_PLAIN * sum(tensor.num_bytes for is_computed, tensor in sizes if is_computed) > plain_bytes


def list_tensors(file: GgufFile) -> dict[str, HfTensor]:
    """Returns the tensors of the checkpoint by name. Raises `BootError` for a tensor that the architecture lacks."""
    architecture, config = find_architecture(file), read_config(file)
    tensors: dict[str, HfTensor] = {}
    beyond = {tensor.name for tensor in file.tensors.values() if _is_beyond(tensor, config)}
    mtp = f"blk.{config['num_hidden_layers']}." if JOIN in architecture.layer_names else None
    if mtp is not None:
        beyond = {name for name in beyond if not name.startswith(mtp)}
    if beyond:
        log.info("%d tensors of layers that predict further tokens (MTP) are not used", len(beyond))
    for tensor in file.tensors.values():
        if tensor.name in beyond or tensor.name in FACTOR_TENSORS:
            continue
        name, hf_name = _find_name(architecture, tensor)
        if mtp is not None and tensor.name.startswith(mtp) and architecture.layer_names[JOIN].startswith(MTP):
            hf_name = MTP_LAYER.sub(lambda match: match[1] or f"{MTP}layers.0.", hf_name)
        tensors[hf_name] = HfTensor(
            replace(tensor, shape=_find_shape(tensor, hf_name)),
            interleaved_heads=config[architecture.interleaved[name]] if name in architecture.interleaved else 0,
            is_transposed=name in architecture.transposed and hf_name.endswith(".weight"),
            is_one_more=architecture.has_whole_norms and name.endswith("norm") and name != "ssm_norm",
            is_negative_exp=hf_name.endswith("A_log"),
        )
    return tensors


def _without_ones(shape: tuple[int, ...], least: int) -> tuple[int, ...]:
    """Returns the shape without its first dimensions of 1, with `least` dimensions at least.

    In the file they are the last ones, and mean nothing: ggml has four dimensions for each tensor.
    """
    while len(shape) > least and shape[0] == 1:
        shape = shape[1:]
    return shape


def _find_shape(tensor: GgufTensor, hf_name: str) -> tuple[int, ...]:
    """Returns the shape in a checkpoint, which has some vectors as matrices, and a convolution's input of 1 channel.

    The file has vectors of a Mamba block as matrices.
    """
    is_vector = "norm" in tensor.name or not tensor.name.endswith(".weight")
    shape = _without_ones(tensor.shape, 1 if is_vector else min(2, len(tensor.shape)))
    if len(shape) == 1 and hf_name.endswith(VECTORS):
        return 1, *shape
    if len(shape) == 2 and hf_name.endswith(MATRICES):
        return (prod(shape),)
    return (shape[0], 1, *shape[1:]) if len(shape) == 2 and hf_name.endswith(CONVOLUTION) else shape


def _is_beyond(tensor: GgufTensor, config: Mapping[str, Any]) -> bool:
    """True for a tensor of the layers after the model's, which predict further tokens."""
    layer = LAYER.match(tensor.name)
    return bool(
        layer and config.get("num_nextn_predict_layers") and int(layer["number"]) >= config["num_hidden_layers"]
    )


def _find_name(architecture: Architecture, tensor: GgufTensor) -> tuple[str, str]:
    """Returns the tensor's name without layer and suffix, and its name in a checkpoint."""
    layer = LAYER.fullmatch(tensor.name)
    whole_name, names = (layer["name"], architecture.layer_names) if layer else (tensor.name, architecture.model_names)
    prefix = f"{architecture.layer_prefix}{layer['number']}." if layer else ""
    name, _, suffix = whole_name.rpartition(".")
    if whole := names.get(whole_name):
        return name, prefix + whole
    if suffix not in ("weight", "bias") or name not in names:
        reason = f"{architecture.hf_name} has none of this name, and would compute other text without it"
        raise BootError(f"{tensor.path}: tensor {tensor.name!r}: {reason}")
    return name, f"{prefix}{names[name]}.{suffix}"


def name_in_file(architecture: Architecture, hf_name: str) -> str:
    """Returns the name in a file of a tensor of a checkpoint; the name itself if the file can have none."""
    place, names, rest = "", architecture.model_names, hf_name
    if hf_name.startswith(architecture.layer_prefix):
        number, _, rest = hf_name.removeprefix(architecture.layer_prefix).partition(".")
        place, names = f"blk.{number}.", architecture.layer_names
    for name, theirs in names.items():
        for suffix in ("", ".weight", ".bias"):
            if rest == theirs + suffix:
                return f"{place}{name}{suffix}"
    return hf_name
