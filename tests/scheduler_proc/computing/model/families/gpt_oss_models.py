"""Small random checkpoints of gpt-oss, with experts in plain numbers or in MXFP4. All numbers are float16."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.checkpoints import CONTEXT, VOCAB_SIZE

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 9,
    "swiglu_limit": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 24,
    },
}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}


def build_gpt_oss(path: Path, *, is_quantized: bool = False, **fields: Any) -> "transformers.PreTrainedModel":
    """Writes the checkpoint into `path`; returns the float32 model with its values."""
    config = transformers.GptOssConfig(**SIZES | fields)
    model: Any = transformers.GptOssForCausalLM(config)
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
            parameter.copy_(parameter.half())  # as GGUF files have them
    stored: dict[str, torch.Tensor] = {}
    if is_quantized:
        for name, parameter in model.named_parameters():
            if name.endswith(("gate_up_proj", "down_proj")):
                num_experts, num_inputs, num_outputs = parameter.shape
                shape = num_experts, num_outputs, num_inputs // 32
                blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
                scales = torch.randint(120, 123, shape, generator=generator, dtype=torch.uint8)
                stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
                parameter.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
    model.save_pretrained(path)
    if stored:
        tensors = load_file(path / "model.safetensors")
        others = {name: tensor for name, tensor in tensors.items() if f"{name}_blocks" not in stored}
        save_file(others | stored, path / "model.safetensors", {"format": "pt"})
        fields = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(fields | {"quantization_config": MXFP4}))
    return model.eval()
