"""Weights of quantized linears: equal to the values that the packages which define the formats give."""

import json
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from kernels.arguments.block_rows import BlockRows
from kernels.operations.dequantize_blocks import dequantize_blocks
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.registry import METHODS
from scheduler_proc.computing.loading.quantized.stored_linear import LinearWeight, StoredLinear
from tests.scheduler_proc.computing.loading.quantized.reference_linears import CASES, GOLDEN, digest, package

FORMS = {
    "awq-32": "I4_32",
    "awq-128": "I4_128",
    "gptq-2": "I4_64",
    "gptq-3": "I4_64",
    "gptq-4": "I4_32",
    "gptq-4-symmetric": "I4_128",
    "gptq-4-v2": "I4_64",
    "gptq-8-symmetric": "I8_128",
    "gptq-8": "I8_128",
    "w4a16": "I4_64",
    "w4a16-asymmetric": "I4_64",
    "w4a16-channel": "I4_128",
    "w3a16": "I4_64",
    "w8a16": "I8_64",
    "w8a8": "I8_128",
    "w8a8-asymmetric": "I8_128",
    "fp8-tensor": "F8_128",
    "fp8-channel": "F8_128",
    "fp8-block": "F8_32",
    "fp8-fine": "F8_64",
    "mxfp4": "MXFP4",
}
"""By case, the form of its blocks; the other cases are read as values."""


MODULE = "model.layers.0.self_attn.o_proj"


def find_weight(config: dict[str, Any], tensors: dict[str, Tensor]) -> LinearWeight:
    method = METHODS[config["quant_method"]](HfConfig(config, "config.json: quantization_config"), [MODULE])
    return method.find_weight(StoredLinear(MODULE, tensors))


SMALL_PACKAGES = ("compressed_tensors", "transformers")
"""They are installed with the tools for tests. The values by other packages are in the golden file."""


def values_of(weight: LinearWeight) -> Tensor:
    rows = weight.read()
    assert weight.form == (rows.form if isinstance(rows, BlockRows) else None)
    return dequantize_blocks(rows) if isinstance(rows, BlockRows) else rows


def read_golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the facts of a case and its tensors."""
    with safe_open(GOLDEN, "pt") as file:
        facts = json.loads(file.metadata()[name])
    tensors = load_file(GOLDEN).items()
    return facts, {key.removeprefix(f"{name}/"): value for key, value in tensors if key.startswith(f"{name}/")}


@pytest.mark.parametrize("name", CASES)
def test_values_of_a_real_weight_are_those_of_the_package(name: str) -> None:
    facts, tensors = read_golden(name)
    weight = find_weight(facts["config"], tensors)
    assert weight.form == FORMS.get(name)
    values = values_of(weight)
    assert tuple(values.shape) == (32, 128)
    assert digest(values.to(getattr(torch, facts["dtype"]))) == facts["digest"]


@pytest.mark.parametrize("name", [name for name, (needed, _) in CASES.items() if needed in SMALL_PACKAGES])
def test_values_of_random_weights_are_those_of_the_package(name: str) -> None:
    needed, make = CASES[name]
    package(needed)
    case = make(torch.randn(96, 384, generator=torch.Generator().manual_seed(3)) * 0.02)
    values = values_of(find_weight(case.config, case.tensors))
    torch.testing.assert_close(values.to(case.expected.dtype), case.expected, rtol=0, atol=0)
