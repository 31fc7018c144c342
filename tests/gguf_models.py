"""Small GGUF files whose tensors are in blocks, and checkpoints with the values that the blocks stand for."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kernels.arguments.block_forms import FORMS, GGUF_FORMS
from kernels.arguments.block_rows import BlockRows
from kernels.operations.dequantize_blocks import dequantize_blocks
from tests.checkpoints import build_checkpoint
from tests.gguf_files import Stored, Typed, write_gguf
from tests.kernels.operations.block_forms import random_blocks

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}

LARGEST_CODES = {
    "Q4_0": 8,
    "Q4_1": 15,
    "Q5_0": 16,
    "Q5_1": 31,
    "Q8_0": 128,
    "IQ4_NL": 127,
    "Q2_K": 3 * 15,
    "Q3_K": 4 * 32,
    "Q4_K": 15 * 63,
    "Q5_K": 31 * 63,
    "Q6_K": 32 * 128,
    "IQ4_XS": 127 * 32,
    "TQ2_0": 2,
}
"""The largest magnitude of a code, with the largest of its group's scale."""

TRANSPOSED = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
NAMES = {
    "transformer.h.": "blk.",
    "model.layers.": "blk.",
    "transformer.wte": "token_embd",
    "model.embed_tokens": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "model.norm": "output_norm",
    "lm_head": "output",
    "ln_1": "attn_norm",
    "input_layernorm": "attn_norm",
    "ln_2": "ffn_norm",
    "post_attention_layernorm": "ffn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Parts of a checkpoint's names, and what llama.cpp's converter writes."""

StoredRows = Tensor | BlockRows
"""What a file holds: numbers in float32 or float16, or rows in blocks."""


def stored_rows(rows: StoredRows) -> Stored:
    form = rows.form if isinstance(rows, BlockRows) else {4: "F32", 2: "F16"}[rows.dtype.itemsize]
    data = rows.blocks if isinstance(rows, BlockRows) else rows
    return Stored(form, rows.shape, data.contiguous().view(torch.uint8).numpy().tobytes())


def small_blocks(form: str, num_rows: int, num_inputs: int, seed: int) -> BlockRows:
    """Returns random blocks with values up to about 1."""
    blocks = random_blocks(form, num_rows, num_inputs, seed).view(-1, FORMS[form].num_bytes)
    if form == "MXFP4":
        blocks[:, 0] = 121 + blocks[:, 0] % 3
    for begin in FORMS[form].halves:
        scale = (0.5 + torch.arange(len(blocks)) % 7 / 14) / LARGEST_CODES[form]
        blocks[:, begin : begin + 2] = scale.half()[:, None].view(torch.uint8)
    return BlockRows(blocks.view(num_rows, -1), form, num_inputs)


class BlockModel(NamedTuple):
    """A model in GGUF in `path`, with config.json, and in `values` the checkpoint of the same values in float32."""

    path: Path
    values: Path


def build_block_model(
    root: Path, variant: str, form_of: Callable[[str], str], num_parts: int = 1, **overrides: Any
) -> BlockModel:
    """Writes the model, in several files if asked; `form_of` maps a tensor's name there to its form, "F32" or "F16"."""
    model = BlockModel(root / "gguf", root / "values")
    for path in model:
        path.mkdir()
    sizes: dict[str, Any] = {} if variant.startswith("gpt2") else SIZES
    hf_model = build_checkpoint(model.values, variant, **(sizes | overrides))
    shutil.copy(model.values / "config.json", model.path)
    values = load_file(model.values / "model.safetensors")
    stored: dict[str, StoredRows] = {}
    for seed, (name, tensor) in enumerate(values.items()):
        gguf_name = name_in_file(name)
        form = form_of(gguf_name) if tensor.dim() == 2 else "F32"
        is_transposed = variant.startswith("gpt2") and any(gguf_name.endswith(f"{part}.weight") for part in TRANSPOSED)
        rows = tensor.T if is_transposed else tensor
        if form == "F16":
            rows = rows.half().float()
        stored[gguf_name] = rows.half() if form == "F16" else rows
        if form in GGUF_FORMS:
            blocks = small_blocks(form, rows.shape[0], rows.shape[1], seed)
            stored[gguf_name] = blocks
            rows = dequantize_blocks(blocks)
        num_heads = _num_alternating_heads(hf_model.config, gguf_name)
        if num_heads:  # the order of the rows in the file is the converter's
            rows = rows.unflatten(0, (num_heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        values[name] = (rows.T if is_transposed else rows).contiguous()
    save_file(values, model.values / "model.safetensors", metadata={"format": "pt"})
    metadata, tensors = _metadata(hf_model.config), {name: stored_rows(rows) for name, rows in stored.items()}
    if num_parts == 1:
        write_gguf(model.path / "model.gguf", metadata, tensors)
    for index in range(num_parts if num_parts > 1 else 0):
        split = {"split.no": Typed(2, index), "split.count": Typed(2, num_parts)}
        split["split.tensors.count"] = Typed(5, len(tensors))
        own = {name: tensors[name] for name in list(tensors)[index::num_parts]}
        path = model.path / f"model-{index + 1:05}-of-{num_parts:05}.gguf"
        write_gguf(path, split if index else metadata | split, own)
    return model


def name_in_file(name: str) -> str:
    """Returns the name that llama.cpp's converter gives a tensor of a checkpoint."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name


def _num_alternating_heads(hf_config: Any, name: str) -> int:
    """Returns the number of heads if the converter lets the rows of each head's halves alternate, else 0."""
    if hf_config.model_type != "llama":
        return 0
    heads = {"attn_q": hf_config.num_attention_heads, "attn_k": hf_config.num_key_value_heads}
    return next((num_heads for part, num_heads in heads.items() if f"{part}." in name), 0)


def _metadata(hf_config: Any) -> dict[str, Any]:
    architecture = hf_config.model_type
    fields: dict[str, Any] = {
        "embedding_length": hf_config.hidden_size,
        "block_count": hf_config.num_hidden_layers,
        "context_length": hf_config.max_position_embeddings,
        "attention.head_count": hf_config.num_attention_heads,
    }
    if architecture == "gpt2":
        fields["feed_forward_length"] = 4 * hf_config.hidden_size
        fields["attention.layer_norm_epsilon"] = hf_config.layer_norm_epsilon
    else:
        fields["feed_forward_length"] = hf_config.intermediate_size
        fields["attention.head_count_kv"] = hf_config.num_key_value_heads
        fields["attention.layer_norm_rms_epsilon"] = hf_config.rms_norm_eps
    return {"general.architecture": architecture} | {f"{architecture}.{key}": value for key, value in fields.items()}
