"""The language model of a checkpoint of images and text, served alone: its logits are transformers' without images."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.checkpoints import CONTEXT, MLA, VOCAB_SIZE, make_config
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


HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "rope_parameters": {"mrope_interleaved": True, "mrope_section": [1, 1, 1], "rope_theta": 1e7},
}
ENCODER: dict[str, Any] = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14}


def qwen3_5() -> transformers.PreTrainedConfig:
    encoder = {**ENCODER, "out_hidden_size": 64, "num_position_embeddings": 16}
    return transformers.Qwen3_5Config(text_config={**TEXT, **HYBRID}, vision_config=encoder, tie_word_embeddings=True)


def qwen3_5_moe() -> transformers.PreTrainedConfig:
    encoder = {**ENCODER, "out_hidden_size": 64, "num_position_embeddings": 16}
    return transformers.Qwen3_5MoeConfig(text_config={**TEXT, **HYBRID}, vision_config=encoder)


def kimi_k25() -> transformers.PreTrainedConfig:
    text = {**TEXT, **MLA, "n_group": 1, "topk_group": 1, "head_dim": 8}
    encoder = {name: VISION[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    encoder |= {"num_attention_heads": 2, "pos_emb_height": 4, "pos_emb_width": 4}
    return transformers.Kimi_K25Config(
        text_config=text, vision_config=encoder, projection_hidden_size=32, tie_word_embeddings=False
    )


def of_text(name: str, **text: Any) -> Callable[[], transformers.PreTrainedConfig]:
    """Returns what makes the config of a model whose language model has these fields, with the smallest encoder."""

    def make() -> transformers.PreTrainedConfig:
        kind = getattr(transformers, f"{name}Config")
        encoders = {
            "Idefics3": "idefics3_vision",
            "SmolVLM": "smolvlm_vision",
            "InternVL": "internvl_vision",
            "Lfm2Vl": "siglip2_vision_model",
        }
        encoder = {
            **VISION,
            "model_type": encoders.get(name, "siglip2_vision_model" if name == "Lfm2Vl" else "clip_vision_model"),
        }
        if name.startswith("Qwen"):
            encoder = {**ENCODER, "out_hidden_size": 64, "num_position_embeddings": 16}
        return kind(
            text_config={**TEXT, **text},
            vision_config=encoder,
            **({"vision_feature_layer": -1} if "Llava" in name else {}),
        )

    make.__name__ = f"{name}-{text.get('model_type', '')}"
    return make


AXES = {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 1e6}
OTHERS = [
    of_text("SmolVLM", model_type="llama"),
    of_text("Idefics3", model_type="llama"),
    of_text("Qwen2VL", rope_parameters=AXES | {"mrope_section": [2, 3, 3]}, head_dim=16),
    of_text("Qwen2_5_VL", rope_parameters=AXES | {"mrope_section": [2, 3, 3]}, head_dim=16),
    of_text("Qwen3VL", rope_parameters=AXES),
    of_text(
        "Qwen3VLMoe",
        tie_word_embeddings=False,
        rope_parameters=AXES,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
    ),
    of_text("InternVL", model_type="qwen2"),
    of_text("InternVL", model_type="qwen3"),
    of_text("Llava", model_type="llama"),
    of_text("Llava", model_type="mistral"),
    of_text("LlavaNext", model_type="granite", attention_multiplier=0.125),
    of_text("LlavaOnevision", model_type="qwen2"),
    of_text("Lfm2Vl", model_type="lfm2", full_attn_idxs=[1], block_multiple_of=32),
]


def build(path: Path, config: transformers.PreTrainedConfig) -> Any:
    """Writes a random checkpoint and returns its float32 model."""
    model: Any = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2, generator=generator)
    model.eval().save_pretrained(path)
    return model


@pytest.mark.parametrize("make", [gemma3, gemma4, small3, ministral3, qwen3_5, qwen3_5_moe, *OTHERS])
def test_logits_are_those_of_the_whole_model(tmp_path: Path, make: Any) -> None:
    model = build(tmp_path, make())
    with torch.inference_mode():
        expected = torch.stack([model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in PROMPTS])
    torch.testing.assert_close(
        our_logits(make_config(tmp_path), PROMPTS), expected, rtol=0, atol=2e-5 * float(expected.std())
    )


def test_kimi_k2_5_is_read_by_its_published_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`save_pretrained` of transformers 5.24 calls the text's layers blocks, as the tower's are called."""
    model, config = build(tmp_path, kimi_k25()), tmp_path / "config.json"
    fields = json.loads(config.read_text(encoding="utf-8")) | {"architectures": ["KimiK25ForConditionalGeneration"]}
    fields["text_config"]["model_type"] = "kimi_k2"
    config.write_text(json.dumps(fields), encoding="utf-8")
    text, own = "model.language_model.", "language_model."
    tensors = {
        name.replace(text, f"{own}model.") if text in name else name.replace("lm_head", f"{own}lm_head"): tensor
        for name, tensor in model.state_dict().items()
    }
    save_file({name.removeprefix("model."): each for name, each in tensors.items()}, tmp_path / "model.safetensors")
    with torch.inference_mode():
        expected = torch.stack([model(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in PROMPTS])
    torch.testing.assert_close(
        our_logits(make_config(tmp_path), PROMPTS), expected, rtol=0, atol=2e-5 * float(expected.std())
    )
    assert "not used" not in caplog.text


def test_a_head_that_predicts_further_tokens_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, qwen3_5())
    expected, tensors = our_logits(make_config(tmp_path), PROMPTS), load_file(tmp_path / "model.safetensors")
    caplog.clear()
    save_file(tensors | {"mtp.fc.weight": torch.ones(64, 128)}, tmp_path / "model.safetensors")
    assert torch.equal(our_logits(make_config(tmp_path), PROMPTS), expected)
    assert "not used" not in caplog.text


def test_ministral_3_is_read_in_fp8_as_it_is_published(tmp_path: Path) -> None:
    """One scale for each linear of the language model, and one for its inputs, which is not used."""
    build(tmp_path, ministral3())
    quantized, fields = tmp_path / "fp8", json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    quantized.mkdir()
    values, stored = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    for name in [name for name in values if name.startswith("language_model.") and name.endswith("_proj.weight")]:
        scale = (values[name].abs().max() / 448).bfloat16()
        stored[name] = (values[name] / scale.float()).to(torch.float8_e4m3fn)
        stored |= {f"{name}_scale_inv": scale, name.replace("weight", "activation_scale"): torch.ones_like(scale)}
        values[name] = stored[name].float() * scale.float()
    method: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    method["modules_to_not_convert"] = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    (quantized / "config.json").write_text(json.dumps(fields | {"quantization_config": method}), encoding="utf-8")
    save_file(stored, quantized / "model.safetensors")
    save_file(values, tmp_path / "model.safetensors")
    assert torch.equal(*(our_logits(make_config(path), PROMPTS) for path in (quantized, tmp_path)))
