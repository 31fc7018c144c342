"""Small checkpoints with random quantized linears of each method, and the same checkpoints with their values.

Layouts are written down here a second time, as plainly as possible.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from tests.checkpoints import build_checkpoint

Shape = tuple[int, int]
Linear = tuple[dict[str, Tensor], Tensor]
"""Tensors by the endings of their names, and the values [O, I]."""

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
STEP = 0.03
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Quantized(NamedTuple):
    """How a checkpoint is quantized: `make` returns a linear of a module, `None` for one that stays as it is."""

    config: dict[str, Any]
    make: Callable[[str, Shape, torch.Generator], Linear | None]
    config_file: str = "config.json"


def pack(codes: Tensor, bits: int) -> Tensor:
    """Returns int32 words of rows of codes, which are one string of bits, the lowest first."""
    string = (codes[:, :, None] >> torch.arange(bits) & 1).flatten(1)
    rest = -string.shape[1] % 32
    packed = numpy.packbits(functional.pad(string, (0, rest)).numpy().astype("uint8"), axis=1, bitorder="little")
    return torch.from_numpy(numpy.ascontiguousarray(packed)).view(torch.int32)


def _random_codes(shape: Shape, bits: int, group: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Returns codes, zero points and scales (float16)."""
    num_outputs, num_inputs = shape
    codes = torch.randint(2**bits, shape, generator=generator)
    zeros = torch.randint(1, 2**bits, (num_outputs, num_inputs // group), generator=generator)
    scales = torch.rand(num_outputs, num_inputs // group, generator=generator) + 0.5
    return codes, zeros, (scales * STEP * 2 ** (4 - bits)).half()


def _values(codes: Tensor, zeros: Tensor | int, scales: Tensor, group_of_input: Tensor) -> Tensor:
    zero = zeros if isinstance(zeros, int) else zeros[:, group_of_input]
    return (codes - zero) * scales.float()[:, group_of_input]


def make_awq(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    codes, zeros, scales = _random_codes(shape, 4, 64, generator)
    mixed = [part.T.unflatten(1, (-1, 8))[:, :, AWQ_ORDER].flatten(1) for part in (codes, zeros)]
    tensors = {"qweight": pack(mixed[0], 4), "qzeros": pack(mixed[1], 4), "scales": scales.T.contiguous()}
    return tensors, _values(codes, zeros, scales, torch.arange(shape[1]) // 64)


def make_gptq(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    """The last linear of an MLP has 8 bits and groups in order, the head has none."""
    if module == "lm_head":
        return None
    bits, group = (8, 128) if module.endswith("down_proj") else (4, 32)
    codes, zeros, scales = _random_codes(shape, bits, group, generator)
    group_of_input = torch.arange(shape[1]) // group
    if bits == 4:
        group_of_input = group_of_input[torch.randperm(shape[1], generator=generator)]
    else:
        zeros = torch.full_like(zeros, 128)
    tensors = {
        "qweight": pack(codes, bits).T.contiguous(),
        "qzeros": pack((zeros - 1).T, bits),
        "scales": scales.T.contiguous(),
        "g_idx": group_of_input.int(),
    }
    return tensors, _values(codes, zeros, scales, group_of_input)


def make_compressed(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    """Attention has fp8 with a scale per output, an MLP 4 bits, and its last linear 8 bits."""
    if module == "lm_head":
        return None
    if ".self_attn." in module:
        scales = torch.rand(shape[0], 1, generator=generator).bfloat16() * STEP
        weight = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
        tensors = {"weight": weight, "weight_scale": scales, "input_scale": torch.ones(1)}
        return tensors, weight.float() * scales.float()
    bits, group = (8, shape[1]) if module.endswith("down_proj") else (4, 64)
    codes, zeros, scales = _random_codes(shape, bits, group, generator)
    scales, in_order = scales.bfloat16(), torch.arange(shape[1]) // group
    if bits == 8:
        tensors = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
        return tensors, _values(codes, 128, scales, in_order)
    tensors = {"weight_packed": pack(codes, bits), "weight_scale": scales, "weight_shape": torch.tensor(shape)}
    tensors["weight_zero_point"] = pack(zeros.T, bits).T.contiguous()
    return tensors, _values(codes, zeros, scales, in_order)


def make_fp8(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    if module == "lm_head":
        return None
    rows, columns = -(-shape[0] // 96), -(-shape[1] // 96)
    scales = (torch.rand(rows, columns, generator=generator) + 0.5) * STEP
    weight = (torch.randn(shape, generator=generator) * 8).to(torch.float8_e4m3fn)
    wide = scales.repeat_interleave(96, 0).repeat_interleave(96, 1)[: shape[0], : shape[1]]
    return {"weight": weight, "weight_scale_inv": scales}, weight.float() * wide


def make_nvfp4(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    if module == "lm_head":
        return None
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    codes = torch.randint(16, shape, generator=generator)
    scales = (torch.rand(shape[0], shape[1] // 16, generator=generator) * 8).to(torch.float8_e4m3fn)
    whole = torch.tensor(STEP / 8)
    values = table[codes & 7] * torch.where(codes > 7, -1.0, 1.0)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": whole, "input_scale": torch.ones(())}
    return tensors, values * (scales.float() * whole).repeat_interleave(16, 1)


def make_bitsandbytes(module: str, shape: Shape, generator: torch.Generator) -> Linear | None:
    """Attention has int8, an MLP a table of 16 values."""
    if module == "lm_head":
        return None
    if ".self_attn." in module:
        weight = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
        scales = torch.rand(shape[0], generator=generator)
        return {"weight": weight, "SCB": scales}, weight.float() * scales[:, None] * (1 / 127)
    table, codes = torch.linspace(-1, 1, 16), torch.randint(16, shape, generator=generator)
    scales = torch.rand(codes.numel() // 64, generator=generator) * 0.4
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": list(shape)}
    tensors = {
        "weight": (codes.view(-1, 2)[:, :1] << 4 | codes.view(-1, 2)[:, 1:]).to(torch.uint8),
        "weight.absmax": scales,
        "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
    }
    return tensors, table[codes] * scales.repeat_interleave(64).view(shape)


def _group(targets: list[str], **weights: Any) -> dict[str, Any]:
    return {"targets": targets, "weights": weights, "input_activations": None}


METHODS: dict[str, Quantized] = {
    "awq": Quantized(
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, make_awq
    ),
    "gptq": Quantized(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": 32,
            "desc_act": True,
            "sym": False,
            "lm_head": False,
            "dynamic": {"-:lm_head": {}, r"+:.*\.down_proj": {"bits": 8, "group_size": 128, "desc_act": False}},
        },
        make_gptq,
    ),
    "compressed-tensors": Quantized(
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "ignore": ["lm_head"],
            "sparsity_config": {},
            "transform_config": {"config_groups": {}},
            "config_groups": {
                "group_0": _group(["Linear"], num_bits=4, type="int", symmetric=False, strategy="group", group_size=64),
                "group_1": _group([r"re:.*self_attn.*"], num_bits=8, type="float", strategy="channel"),
                "group_2": _group([r"re:.*down_proj$"], num_bits=8, type="int", symmetric=True, strategy="channel"),
            },
        },
        make_compressed,
    ),
    "fp8": Quantized(
        {"quant_method": "fp8", "weight_block_size": [96, 96], "modules_to_not_convert": ["lm_head"]}, make_fp8
    ),
    "modelopt": Quantized(
        {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}},
        make_nvfp4,
        "hf_quant_config.json",
    ),
    "bitsandbytes": Quantized({"quant_method": "bitsandbytes", "load_in_4bit": True}, make_bitsandbytes),
}


def build_quantized(
    quantized: Path, plain: Path, method: str, variant: str = "llama-mha", sizes: dict[str, Any] = SIZES
) -> Any:
    """Writes a checkpoint of the method, and one with its values; returns the float32 model with the values."""
    model = build_checkpoint(plain, variant, **sizes)
    config, make, config_file = METHODS[method]
    generator = torch.Generator().manual_seed(9)
    stored, values = load_file(plain / "model.safetensors"), load_file(plain / "model.safetensors")
    for name, tensor in values.items():
        module = name.removesuffix(".weight")
        is_linear = tensor.dim() == 2 and _is_linear(module)
        linear = make(module, (tensor.shape[0], tensor.shape[1]), generator) if is_linear else None
        if linear is not None:
            del stored[name]
            stored |= {f"{module}.{ending}": part for ending, part in linear[0].items()}
            values[name] = linear[1]
    save_file(stored, quantized / "model.safetensors")
    save_file(values, plain / "model.safetensors")
    fields = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    add = {"quantization_config": config} if config_file == "config.json" else {}
    (quantized / "config.json").write_text(json.dumps(fields | add), encoding="utf-8")
    if config_file != "config.json":
        (quantized / config_file).write_text(json.dumps(config), encoding="utf-8")
    model.load_state_dict(values, strict=False)
    return model


def _is_linear(module: str) -> bool:
    if ".visual." in f".{module}":
        return False
    return module == "lm_head" or module.endswith(
        ("_proj", "_linear", "_mqa", ".w1", ".w2", ".w3", "in_proj_qkv", "in_proj_z", "in_proj_qkvz")
    )
