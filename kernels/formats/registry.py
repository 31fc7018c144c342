"""All formats of weights by name."""

from kernels.formats.packed import PACKED
from kernels.formats.plain import PLAIN
from kernels.formats.quantized import QUANTIZED
from kernels.formats.weight_format import QuantizingFormat, WeightFormat

QUANTIZING: dict[str, QuantizingFormat] = {one.name: one for one in QUANTIZED.values()}
"""The formats that `--quantization` can name."""

FORMATS: dict[str, WeightFormat] = {one.name: one for one in (PLAIN, PACKED, *QUANTIZING.values())}
