"""What a model must move: the bytes of its weights that a step reads, and of a token's K and V."""

from math import prod

from scheduler_proc.computing.loading.hf_config import HfConfig
from scheduler_proc.computing.model.decoder_config import DecoderConfig, parameter_shapes
from scheduler_proc.computing.model.families.registry import find_family

WEIGHT_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}
"""Of a weight by format, with the scales of a group of int4."""


def read_shape(shape: dict[str, object], max_model_len: int) -> DecoderConfig:
    """Returns the decoder of a Hugging Face configuration."""
    hf_config = HfConfig(dict(shape))
    return find_family(hf_config).read_config(hf_config, max_model_len)


def weight_bytes(config: DecoderConfig, itemsize: int) -> int:
    """Returns the bytes of the weights that one step reads: embeddings are looked up, but for a tied head."""
    shapes = parameter_shapes(config)
    shapes.pop("position_embedding", None)
    if not config.has_tied_head:
        shapes.pop("embedding")
    return itemsize * sum(prod(shape) for shape in shapes.values())


def kv_bytes(config: DecoderConfig, itemsize: int) -> int:
    """Returns the bytes of a token's K and V in all layers."""
    return 2 * itemsize * config.num_layers * config.num_kv_heads * config.head_dim
