"""What a model must move: the bytes of its weights that a step reads, and of a token's K and V."""

from math import prod

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.decoder import model_parameters
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.registry import find_family

WEIGHT_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}
"""Of a weight by format, with the scales of a group of int4."""


def read_shape(shape: dict[str, object], max_model_len: int) -> ModelDescription:
    """Returns the model of a Hugging Face configuration."""
    hf_config = HfConfig(dict(shape))
    return find_family(hf_config).describe(hf_config, max_model_len)


def weight_bytes(model: ModelDescription, itemsize: int) -> int:
    """Returns the bytes of the weights that one step reads: embeddings are looked up, but for a tied head."""
    read = (parameter.shape for parameter in model_parameters(model) if parameter.role != "embedding")
    return itemsize * sum(map(prod, read))


def kv_bytes(model: ModelDescription, itemsize: int) -> int:
    """Returns the bytes of a token's K and V in all layers."""
    return 2 * itemsize * sum(layer.attention.kv_size for layer in model.layers)
