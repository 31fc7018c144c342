"""Quantizes a linear with the packages that define each format, and writes `reference_linears.safetensors`.

Each case is the linear's tensors by the endings of their names, its `quantization_config`, and its values by the
package. The committed file is made of a part of a real weight (SmolLM2-135M-Instruct, layer 3, o_proj), with a
digest of the values:

    python -m tests.scheduler_proc.computing.loading.quantized.reference_linears WEIGHTS.gguf
"""

import hashlib
import importlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import torch
from safetensors.torch import save_file
from torch import Tensor

GOLDEN = Path(__file__).with_suffix(".safetensors")
TENSOR, ROWS, COLUMNS = "blk.3.attn_output.weight", 32, 128


class Case(NamedTuple):
    """A linear of one quantization method."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    expected: Tensor


def package(name: str) -> Any:
    """Imports a module of a reference package; some import code for training, which needs more packages."""
    for needed in ("datasets", "evaluate"):
        if needed not in sys.modules and importlib.util.find_spec(needed) is None:
            sys.modules[needed] = MagicMock(__spec__=MagicMock())
    return importlib.import_module(name)


def find_scales(values: Tensor, bits: int, group: int) -> tuple[Tensor, Tensor]:
    """Returns scales (float16) and zero points [O, groups] that cover the range of each group."""
    grouped = values.float().unflatten(1, (-1, group))
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).clamp(min=1e-4).half()
    return scales, (-low / scales.float()).round().clamp(0, 2**bits - 1)


def awq(values: Tensor, group: int) -> Case:
    gemm, packing = package("awq.modules.linear.gemm"), package("awq.utils.packing_utils")
    scales, zeros = find_scales(values, 4, group)
    linear = torch.nn.Linear(*reversed(values.shape), bias=False)
    linear.weight.data = (values.clamp(*_limits(values, scales, zeros, 4))).half()
    packed = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
    tensors = {name: getattr(packed, name) for name in ("qweight", "qzeros", "scales")}
    expected = packing.dequantize_gemm(*tensors.values(), 4, group).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return Case(config, tensors, expected)


def gptq(values: Tensor, bits: int, group: int, version: int, *, is_symmetric: bool = False) -> Case:
    module = "qlinear_torch_zp" if version == 1 else "qlinear_torch"
    num_outputs, num_inputs = values.shape
    scales, zeros = find_scales(values, bits, group)
    if is_symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
        scales = (values.float().unflatten(1, (-1, group)).abs().amax(-1) / 2 ** (bits - 1)).half()
    zeros = zeros.clamp(min=1)  # the first version stores them less 1
    linear = torch.nn.Linear(num_inputs, num_outputs, bias=False)
    linear.weight.data = values.clamp(*_limits(values, scales, zeros, bits))
    layer = package(f"auto_round_extension.torch.{module}").QuantLinear(
        bits, group, num_inputs, num_outputs, bias=False
    )
    layer.device = torch.device("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        layer.pack(linear, scales, zeros.int(), device="cpu")
    expected = layer(torch.eye(num_inputs, dtype=torch.float16)).T
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": is_symmetric}
    config["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    return Case(config, {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}, expected)


def act_order(values: Tensor, bits: int, group: int) -> Case:
    """Quantizes the inputs in another order, and stores the codes in the usual one."""
    order = torch.randperm(values.shape[1], generator=torch.Generator().manual_seed(5))
    config, tensors, expected = gptq(values[:, order], bits, group, 1)
    place, per_word = order.argsort(), 32 // bits
    shifts = torch.arange(per_word, dtype=torch.int64)[None, :, None] * bits
    codes = (tensors["qweight"].long()[:, None] >> shifts & 2**bits - 1).flatten(0, 1)[place]
    words = (codes.unflatten(0, (-1, per_word)) << shifts).sum(1)
    tensors["qweight"] = torch.where(words >= 2**31, words - 2**32, words).int()
    tensors["g_idx"] = (torch.arange(values.shape[1]) // group)[place].int()
    return Case(config | {"desc_act": True}, tensors, expected[:, place])


def compressed(values: Tensor, file_format: str, **weights: Any) -> Case:
    quantization, helpers = package("compressed_tensors.quantization"), package("compressed_tensors.quantization.utils")
    compressor = package("compressed_tensors.compressors").BaseCompressor.get_value_from_registry(file_format)
    args = quantization.QuantizationArgs(**weights)
    values, parameters = values.bfloat16(), dict[str, Tensor]()
    if file_format == "nvfp4-pack-quantized":
        parameters["weight_global_scale"] = helpers.generate_gparam(values.min(), values.max())
    rows, columns = {
        "tensor": values.shape,
        "channel": (1, values.shape[1]),
        "block": tuple(weights.get("block_structure") or ()),
    }.get(weights["strategy"], (1, weights.get("group_size")))
    blocks = torch.nn.functional.pad(values, (0, -values.shape[1] % columns, 0, -values.shape[0] % rows))
    blocks = blocks.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    low, high = (blocks.amin((1, 3)), blocks.amax((1, 3)))
    scale, zero = helpers.calculate_qparams(low, high, args, parameters.get("weight_global_scale"))
    if weights["strategy"] == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=args, format=file_format)
    state = {"weight": values, "weight_scale": scale, "weight_zero_point": zero, **parameters}
    tensors = compressor.compress(state, scheme)
    expected = compressor.decompress(dict(tensors), scheme)["weight"]
    group = {"targets": ["Linear"], "weights": weights, "format": None}
    config = {"quant_method": "compressed-tensors", "format": file_format, "config_groups": {"group_0": group}}
    return Case(config, {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}, expected)


def fine_grained_fp8(values: Tensor, rows: int, columns: int) -> Case:
    integration = package("transformers.integrations.finegrained_fp8")
    blocks = values.float().unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    scale = blocks.abs().amax((1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn).flatten(2).flatten(0, 1)
    dequantize = integration.Fp8Dequantize(MagicMock())
    expected = dequantize._dequantize_one(codes, scale)
    config = {"quant_method": "fp8", "weight_block_size": [rows, columns], "activation_scheme": "dynamic"}
    return Case(config, {"weight": codes, "weight_scale_inv": scale}, expected)


def modelopt_nvfp4(values: Tensor) -> Case:
    """Stores what compressed-tensors makes, with the inverse of its scale of scales."""
    _, tensors, _ = compressed(values, "nvfp4-pack-quantized", **NVFP4)
    inverse = 1 / tensors["weight_global_scale"]
    stored = {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"], "weight_scale_2": inverse}
    helpers = package("compressed_tensors.compressors.nvfp4.helpers")
    codes = helpers.unpack_fp4_from_uint8(stored["weight"], *values.shape, dtype=torch.float32)
    scales = stored["weight_scale"].float() * inverse
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    return Case(config, stored, codes * scales.repeat_interleave(16, dim=1))


def bitsandbytes_4bit(values: Tensor, kind: str, *, is_nested: bool) -> Case:
    functional = package("bitsandbytes.functional")
    packed, state = functional.quantize_4bit(
        values.bfloat16(), blocksize=64, compress_statistics=is_nested, quant_type=kind
    )
    expected = functional.dequantize_4bit(packed, state)
    parts = {f"weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
    return Case({"quant_method": "bitsandbytes", "load_in_4bit": True}, {"weight": packed, **parts}, expected)


def bitsandbytes_int8(values: Tensor) -> Case:
    functional = package("bitsandbytes.functional")
    codes, scales, _ = functional.int8_vectorwise_quant(values.half())
    expected = functional.int8_vectorwise_dequant(codes, scales)
    return Case({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"weight": codes, "SCB": scales}, expected)


def _limits(values: Tensor, scales: Tensor, zeros: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Returns the values of the first and the last code, by input."""
    group = values.shape[1] // scales.shape[1]
    edges = ((edge - zeros) * scales.float() for edge in (0, 2**bits - 1))
    low, high = (edge.repeat_interleave(group, dim=1) for edge in edges)
    return low, high


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}
NVFP4["scale_dtype"] = "torch.float8_e4m3fn"
MXFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32}
MXFP4["scale_dtype"] = "torch.uint8"

CASES: dict[str, tuple[str, Callable[[Tensor], Case]]] = {
    "awq-32": ("awq", lambda values: awq(values, 32)),
    "awq-128": ("awq", lambda values: awq(values, 128)),
    "gptq-2": ("auto_round", lambda values: gptq(values, 2, 64, 2)),
    "gptq-3": ("auto_round", lambda values: gptq(values, 3, 64, 1)),
    "gptq-4": ("auto_round", lambda values: gptq(values, 4, 32, 1)),
    "gptq-4-symmetric": ("auto_round", lambda values: gptq(values, 4, 128, 1, is_symmetric=True)),
    "gptq-4-v2": ("auto_round", lambda values: gptq(values, 4, 64, 2)),
    "gptq-8-symmetric": ("auto_round", lambda values: gptq(values, 8, 128, 2, is_symmetric=True)),
    "gptq-8": ("auto_round", lambda values: gptq(values, 8, 128, 1)),
    "gptq-4-act-order": ("auto_round", lambda values: act_order(values, 4, 32)),
    "w4a16": ("compressed_tensors", lambda values: compressed(values, "pack-quantized", **INT4)),
    "w4a16-asymmetric": (
        "compressed_tensors",
        lambda values: compressed(values, "pack-quantized", **INT4 | {"symmetric": False}),
    ),
    "w4a16-channel": (
        "compressed_tensors",
        lambda values: compressed(values, "pack-quantized", **INT8 | {"num_bits": 4}),
    ),
    "w3a16": ("compressed_tensors", lambda values: compressed(values, "pack-quantized", **INT4 | {"num_bits": 3})),
    "w8a16": ("compressed_tensors", lambda values: compressed(values, "pack-quantized", **INT4 | {"num_bits": 8})),
    "w8a8": ("compressed_tensors", lambda values: compressed(values, "int-quantized", **INT8)),
    "w8a8-asymmetric": (
        "compressed_tensors",
        lambda values: compressed(values, "int-quantized", **INT8 | {"symmetric": False}),
    ),
    "fp8-tensor": (
        "compressed_tensors",
        lambda values: compressed(values, "float-quantized", **FP8 | {"strategy": "tensor"}),
    ),
    "fp8-channel": (
        "compressed_tensors",
        lambda values: compressed(values, "float-quantized", **FP8 | {"strategy": "channel"}),
    ),
    "fp8-block": (
        "compressed_tensors",
        lambda values: compressed(values, "float-quantized", **FP8, strategy="block", block_structure=[20, 96]),
    ),
    "nvfp4": ("compressed_tensors", lambda values: compressed(values, "nvfp4-pack-quantized", **NVFP4)),
    "mxfp4": ("compressed_tensors", lambda values: compressed(values, "mxfp4-pack-quantized", **MXFP4)),
    "fp8-fine": ("transformers", lambda values: fine_grained_fp8(values, 16, 64)),
    "modelopt-nvfp4": ("compressed_tensors", modelopt_nvfp4),
    "nf4": ("bitsandbytes", lambda values: bitsandbytes_4bit(values, "nf4", is_nested=False)),
    "nf4-nested": ("bitsandbytes", lambda values: bitsandbytes_4bit(values, "nf4", is_nested=True)),
    "fp4": ("bitsandbytes", lambda values: bitsandbytes_4bit(values, "fp4", is_nested=False)),
    "bitsandbytes-int8": ("bitsandbytes", bitsandbytes_int8),
}
"""By name, the package and what it makes of values [O, I]."""


def digest(values: Tensor) -> str:
    """Returns a digest of the values; negative zeros are as good as positive ones."""
    return hashlib.sha256((values.float() + 0.0).numpy().tobytes()).hexdigest()


def read_real_values(gguf_file: str) -> Tensor:
    gguf = package("gguf")
    tensor = next(tensor for tensor in gguf.GGUFReader(gguf_file).tensors if tensor.name == TENSOR)
    return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))


def main(gguf_file: str) -> None:
    values = read_real_values(gguf_file)[:ROWS, :COLUMNS].contiguous()
    cases = {name: make(values) for name, (_, make) in CASES.items()}
    tensors = {
        f"{name}/{ending}": tensor.contiguous().clone()
        for name, case in cases.items()
        for ending, tensor in case.tensors.items()
    }
    facts = {
        name: {
            "config": case.config,
            "dtype": str(case.expected.dtype).removeprefix("torch."),
            "digest": digest(case.expected),
        }
        for name, case in cases.items()
    }
    save_file(tensors, GOLDEN, {name: json.dumps(fact) for name, fact in facts.items()})


if __name__ == "__main__":
    main(sys.argv[1])
