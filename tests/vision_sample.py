"""What a family of models that read images publishes, and what most of them have in common (`vision_models.py`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

NUM_TEXT_TOKENS = 256
"""A token for each byte; the family's special tokens follow."""

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Sample:
    """What a family publishes. `make_config` gets the sizes and the ids of `tokens`, which are special tokens.

    `processor` are the fields of preprocessor_config.json, from the sizes.
    """

    architecture: str
    make_config: Callable[[Sizes, Mapping[str, int]], Any]
    processor: Callable[[Sizes], dict[str, Any]]
    tokens: tuple[str, ...]
    chat_template: str
    processor_class: str
    processor_fields: Callable[[Sizes], dict[str, Any]] = lambda _: {}
    """The fields of processor_config.json."""


def text_config(sizes: Sizes, ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the fields that decoders of all families have."""
    return {
        "vocab_size": NUM_TEXT_TOKENS + len(ids),
        "hidden_size": sizes["hidden"],
        "intermediate_size": 2 * sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["hidden"] // 16,
        "num_key_value_heads": sizes["hidden"] // 32,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": NUM_TEXT_TOKENS,
        "pad_token_id": NUM_TEXT_TOKENS,
    }


def vision_config(sizes: Sizes) -> dict[str, Any]:
    """Returns the fields that towers of most families have."""
    return {
        "hidden_size": sizes["vision_hidden"],
        "intermediate_size": 2 * sizes["vision_hidden"] + 32,
        "num_hidden_layers": sizes["vision_layers"],
        "num_attention_heads": sizes["vision_hidden"] // 16,
        "image_size": sizes["image_size"],
        "patch_size": sizes["patch_size"],
    }


HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
STEPS = {"do_convert_rgb": True, "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
