"""Opens the weights of a model directory, whatever they are stored as."""

from pathlib import Path
from typing import Literal

from scheduler_proc.computing.loading.checkpoint import Checkpoint, open_checkpoint
from scheduler_proc.computing.loading.quantized.quantized_checkpoint import QuantizedCheckpoint
from scheduler_proc.computing.loading.quantized.registry import find_method


def open_weights(model_dir: Path, load_format: Literal["auto", "safetensors", "pt", "gguf"]) -> Checkpoint:
    """Returns the checkpoint; if its config.json has a `quantization_config`, each linear's tensors are one weight.

    Raises `BootError` for files that are missing or damaged, or that do not fit their `quantization_config`.
    """
    checkpoint, found = open_checkpoint(model_dir, load_format), find_method(model_dir)
    return checkpoint if found is None else QuantizedCheckpoint(checkpoint, *found)
