"""compressed-tensors: integers and floats of 4 and 8 bits, in the formats of llm-compressor.

Shape legend: O outputs, I inputs, G groups of inputs, B bytes.
"""

from collections.abc import Collection
from math import ceil

import torch

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.float_codes import NVFP4_GROUP, fp8_weight, mxfp4_rows, nvfp4_weight
from scheduler_proc.computing.loading.quantized.integer_codes import BLOCK, Groups, integer_weight, unpack_words
from scheduler_proc.computing.loading.quantized.stored_linear import (
    FLOATS,
    INT32,
    LinearWeight,
    StoredLinear,
    match_modules,
    read_group_size,
)

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
SIGN_BIT = 128
PATTERN, CLASS = "re:", "Linear"
"""What begins a target that is a regular expression, and the class of all modules here."""


class CompressedTensors:
    """See `QuantizationMethod`. A module's tensors show their format; config.json adds bits and groups."""

    endings = frozenset(
        {"weight", "weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"}
        | {"weight_global_scale"}
    )

    def __init__(self, config: HfConfig, modules: Collection[str]):
        groups = config.section("config_groups")
        if groups is None:
            raise config.refuse("config_groups", None, "it has to name the quantized modules")
        self._groups = list(groups.sections().values())
        for settings in (config, *self._groups):
            settings.choice("format", FORMATS, "dense")
        nothing = HfConfig({})
        (config.section("sparsity_config") or nothing).choice("format", ("dense",), "dense")
        transforms = (config.section("transform_config") or nothing).section("config_groups") or nothing
        if transforms.sections():
            raise config.refuse("transform_config", "config_groups", "transforms of activations are not supported")
        targets = [(target, index) for index, group in enumerate(self._groups) for target in group.texts("targets")]
        patterns = [(target.removeprefix(PATTERN), index) for target, index in targets if target.startswith(PATTERN)]
        found = match_modules(groups, "targets", [pattern for pattern, _ in patterns], [*modules, CLASS])
        self._group_of = {name: patterns[index][1] for name, index in found.items()}
        for target, index in targets:
            self._group_of[target] = min(index, self._group_of.get(target, index))

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        weight = linear.tensors.get("weight_packed", linear.tensors.get("weight"))
        dtype = None if weight is None else weight.dtype
        if dtype == torch.uint8:
            return _find_fp4_weight(linear)
        settings = self._find_settings(linear.module)
        if dtype == torch.float8_e4m3fn:
            return fp8_weight(linear, "weight_scale", settings.optional_pair("block_structure"))
        if dtype == torch.int8:
            bytes_OI = linear.tensor("weight", (torch.int8,)).view(torch.uint8)
            groups = _read_groups(linear, settings, (len(bytes_OI), bytes_OI.shape[1]), 8)
            return integer_weight(bytes_OI.shape[1], groups, lambda: bytes_OI ^ SIGN_BIT)
        bits = settings.choice("num_bits", range(2, 9))
        num_outputs, num_inputs = map(int, linear.tensor("weight_shape", (torch.int64, torch.int32), (2,)))
        words_OW = linear.tensor("weight_packed", INT32, (num_outputs, ceil(num_inputs * bits / 32)))
        groups = _read_groups(linear, settings, (num_outputs, num_inputs), bits)
        return integer_weight(num_inputs, groups, lambda: unpack_words(words_OW, bits)[:, :num_inputs])

    def _find_settings(self, module: str) -> HfConfig:
        """Returns those of the weights in the module's group: one that names it goes before one of its class."""
        index = self._group_of.get(module, self._group_of.get(CLASS))
        if index is None:
            raise BootError(f"quantization_config: config_groups has no targets for {module}, which is quantized")
        return self._groups[index].section("weights") or HfConfig({})


def _read_groups(linear: StoredLinear, settings: HfConfig, shape: tuple[int, int], bits: int) -> Groups:
    num_outputs, num_inputs = shape
    num_groups = linear.num_groups(num_inputs, read_group_size(settings))
    of_tensor = ((), (1,), (1, 1)) if num_groups == 1 else ()
    scale = linear.scale("weight_scale", FLOATS, (num_outputs, num_groups), *of_tensor)
    scale_OG = scale.reshape(-1, num_groups).expand(num_outputs, num_groups).contiguous()
    zero_OG = group_I = None
    if linear.has("weight_zero_point") or not settings.flag("symmetric", True):
        if linear.has("weight_packed"):
            words_WG = linear.tensor("weight_zero_point", INT32, (ceil(num_outputs * bits / 32), num_groups))
            zero_OG = unpack_words(words_WG.T, bits)[:, :num_outputs].T
        else:
            zero = linear.tensor("weight_zero_point", (torch.int8,), tuple(scale.shape)).short() + SIGN_BIT
            zero_OG = zero.reshape(-1, num_groups).expand(num_outputs, num_groups)
    if linear.has("weight_g_idx"):
        group_I = linear.group_index("weight_g_idx", num_inputs, num_groups)
    return Groups(bits, scale_OG, zero_OG, group_I)


def _find_fp4_weight(linear: StoredLinear) -> LinearWeight:
    bytes_OB = linear.tensor("weight_packed", (torch.uint8,))
    num_outputs, num_inputs = len(bytes_OB), 2 * bytes_OB.shape[1]
    if linear.has("weight_global_scale"):
        shape = num_outputs, linear.num_groups(num_inputs, NVFP4_GROUP)
        scale_OG = linear.scale("weight_scale", (torch.float8_e4m3fn,), shape)
        return nvfp4_weight(bytes_OB, scale_OG / linear.scale("weight_global_scale", FLOATS, (), (1,)))
    shape = num_outputs, linear.num_groups(num_inputs, BLOCK)
    exponent_ON = linear.tensor("weight_scale", (torch.uint8, torch.float8_e8m0fnu), shape).view(torch.uint8)
    if bool((exponent_ON == 255).any()):
        raise linear.error("weight_scale", "holds NaN")
    return LinearWeight("MXFP4", lambda: mxfp4_rows(bytes_OB, exponent_ON))
