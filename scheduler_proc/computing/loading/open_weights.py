"""Opens the weights of a model directory, whatever they are stored as."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from torch import Tensor

from messages.config.pooling import DenseFacts
from messages.errors import BootError
from scheduler_proc.computing.loading.checkpoint import Checkpoint, open_checkpoint
from scheduler_proc.computing.loading.quantized.quantized_checkpoint import QuantizedCheckpoint
from scheduler_proc.computing.loading.quantized.registry import find_method
from scheduler_proc.computing.model.blocks.pooler import DenseLayer


def open_weights(model_dir: Path, load_format: Literal["auto", "safetensors", "pt", "gguf"]) -> Checkpoint:
    """Returns the checkpoint; if its config.json has a `quantization_config`, each linear's tensors are one weight.

    Raises `BootError` for files that are missing or damaged, or that do not fit their `quantization_config`.
    """
    checkpoint, found = open_checkpoint(model_dir, load_format), find_method(model_dir)
    return checkpoint if found is None else QuantizedCheckpoint(checkpoint, *found)


def read_dense_layers(model_dir: Path, layers: Sequence[DenseFacts], hidden_size: int) -> list[DenseLayer]:
    """Returns the Dense layers of sentence-transformers.

    Raises `BootError` if weights are missing or of other shapes, or if a layer does not fit the one before it.
    """
    found: list[DenseLayer] = []
    size = hidden_size
    for facts in layers:
        where, requested = model_dir / facts.directory, {"linear.weight": (facts.out_size, size)}
        requested |= {"linear.bias": (facts.out_size,)} if facts.has_bias else {}
        checkpoint = open_checkpoint(where, "auto")
        tensors = dict(checkpoint.read(requested.keys() & checkpoint.files.keys()))
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != requested:
            raise BootError(f"{where}: the shapes of the weights are {shapes}, expected {requested}")
        weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
        assert isinstance(weight, Tensor)
        assert bias is None or isinstance(bias, Tensor)
        found.append(DenseLayer(weight.float(), bias if bias is None else bias.float(), facts.activation))
        size = facts.out_size
    return found
