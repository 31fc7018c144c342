"""The language model of a checkpoint of images and text, served alone: its logits are transformers' without images."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.checkpoints import CONTEXT, VOCAB_SIZE, make_config
from tests.scheduler_proc.computing.model.test_decoder import our_logits

PROMPTS = [[5, 6, 7], list(range(40)), [9]]
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "sliding_window": 12,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MINISTRAL3_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "llama_4_scaling_beta": 0.1,
}


def gemma3() -> transformers.PreTrainedConfig:
    return transformers.Gemma3Config(
        text_config={**TEXT, "sliding_window_pattern": 2}, vision_config=VISION, mm_tokens_per_image=4
    )


def gemma4() -> transformers.PreTrainedConfig:
    own = {"global_head_dim": 32, "num_kv_shared_layers": 2, "num_hidden_layers": 6, "hidden_size_per_layer_input": 8}
    own |= {"vocab_size_per_layer_input": VOCAB_SIZE, "layer_types": ["sliding_attention", "full_attention"] * 3}
    encoder = {**VISION, "num_key_value_heads": 2, "head_dim": 16}
    return transformers.Gemma4Config(text_config={**TEXT, **own}, vision_config=encoder)


def small3() -> transformers.PreTrainedConfig:
    text = {**TEXT, "model_type": "mistral"}
    return transformers.Mistral3Config(text_config=text, vision_config={**VISION, "model_type": "pixtral"})


def ministral3() -> transformers.PreTrainedConfig:
    text = {**TEXT, "sliding_window": None, "model_type": "ministral3", "rope_parameters": MINISTRAL3_ROPE}
    return transformers.Mistral3Config(text_config=text, vision_config={**VISION, "model_type": "pixtral"})


@pytest.mark.parametrize("make", [gemma3, gemma4, small3, ministral3])
def test_logits_are_those_of_the_whole_model(tmp_path: Path, make: Any) -> None:
    model: Any = transformers.AutoModelForImageTextToText.from_config(make(), dtype=torch.float32)
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2, generator=generator)
    model.eval().save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = torch.stack([model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in PROMPTS])
    torch.testing.assert_close(
        our_logits(make_config(tmp_path), PROMPTS), expected, rtol=0, atol=2e-5 * float(expected.std())
    )
