"""All formats of weights by name."""

from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import WeightFormat

FORMATS: dict[str, WeightFormat] = {one.name: one for one in (PLAIN, PACKED, *QUANTIZED.values())}
