"""GPTQ: codes of neighbouring inputs in a word, with act-order and other settings for some modules.

Shape legend: O outputs, I inputs, G groups of inputs, W words of an output.
"""

from collections.abc import Collection

from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.loading.quantized.integer_codes import Groups, integer_weight, unpack_words
from scheduler_proc.computing.loading.quantized.stored_linear import (
    FLOATS,
    INT32,
    LinearWeight,
    StoredLinear,
    match_modules,
    read_group_size,
)

BITS = (2, 3, 4, 8)


class Gptq:
    """See `QuantizationMethod`."""

    endings = frozenset({"qweight", "qzeros", "scales", "g_idx"})

    def __init__(self, config: HfConfig, modules: Collection[str]):
        # The first format stores zero points less 1.
        self._zero_offset = int(config.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq") == "gptq")
        self._config = config
        dynamic = config.section("dynamic") or HfConfig({})
        # "-:" begins the patterns of modules that are not quantized.
        others = {
            pattern.removeprefix("+:"): fields
            for pattern, fields in dynamic.sections().items()
            if not pattern.startswith("-:")
        }
        self._others = list(others.values())
        self._found = match_modules(config, "dynamic", list(others), modules)
        self._settings_of("")

    def find_weight(self, linear: StoredLinear) -> LinearWeight:
        bits, group_size, is_reordered = self._settings_of(linear.module)
        words_WO = linear.tensor("qweight", INT32)
        num_inputs, num_outputs = words_WO.shape[0] * 32 // bits, words_WO.shape[1]
        num_groups = linear.num_groups(num_inputs, group_size)
        scale_OG = linear.scale("scales", FLOATS, (num_groups, num_outputs)).T.contiguous()
        words_GW = linear.tensor("qzeros", INT32, (num_groups, num_outputs * bits // 32))
        zero_OG = unpack_words(words_GW, bits).T.short() + self._zero_offset
        group_I = linear.group_index("g_idx", num_inputs, num_groups) if is_reordered else None
        groups = Groups(bits, scale_OG, zero_OG, group_I)
        return integer_weight(num_inputs, groups, lambda: unpack_words(words_WO.T, bits))

    def _settings_of(self, module: str) -> tuple[int, int, bool]:
        """Returns bits, group size, and whether groups are of inputs in any order."""
        config = self._config
        if module in self._found:
            config = config.overridden(self._others[self._found[module]])
        return config.choice("bits", BITS), read_group_size(config), config.flag("desc_act", False)
