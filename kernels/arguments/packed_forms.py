"""The forms that the C kernels compute, and their layout.

Outputs are in blocks of 32. For each group of 32 inputs, a block has the codes of its outputs, four neighbouring inputs
of an output together. The 4-bit codes of inputs i and i + 16 share a byte; further bits are in separate planes. Groups
of a unit share a scale per output.
"""

from dataclasses import dataclass, replace

from kernels.arguments.block_forms import GGUF_FORMS, INTEGER_FORMS, TABLES, BlockForm, NumberFormat

BLOCK = 32
"""Outputs of a block, and inputs of a group; kernels/cpu/source/block_layout.h repeats it."""

TOKEN_GROUPS = 2
"""The multiple to which a form with scales per token pads its groups."""


@dataclass(frozen=True)
class PackedForm:
    """A weight is (code - `offset`) * scale + minimum; with factors, less the minimum."""

    bits: int
    offset: int = 0
    scale: NumberFormat = NumberFormat.F16
    groups: int = 1
    """Groups of a unit; 0: all of a row, see `of_row`."""
    has_minimum: bool = False
    """Units have a minimum in float16."""
    has_zero: bool = False
    """Units have an unsigned zero point of 8 bits: the minimum is its product with minus the scale."""
    num_factors: int = 0
    """Signed factors of 8 bits per group, each of 32 or 16 inputs: of the unit's scale, and of its minimum."""
    table: int = 0
    """The number of a table of `TABLES`, from 1 on: codes become its entries plus 128, so the offset is 128."""

    @property
    def has_token_scales(self) -> bool:
        """Activations have one scale per token, not one per group of inputs."""
        return self.groups == 0

    def of_row(self, num_inputs: int) -> "PackedForm":
        """Returns the form with its number of groups, for weights with this number of inputs."""
        if self.groups:
            return self
        return replace(self, groups=-(-num_inputs // (TOKEN_GROUPS * BLOCK)) * TOKEN_GROUPS)

    @property
    def header_bytes(self) -> int:
        """The bytes of a unit before its groups, in a block."""
        return BLOCK * (self.scale.num_bytes + 2 * self.has_minimum + self.has_zero)

    @property
    def factor_bytes(self) -> int:
        """The bytes of a group before its codes, in a block."""
        return BLOCK * self.num_factors * (1 + self.has_minimum)

    @property
    def unit_bytes(self) -> int:
        return self.header_bytes + self.groups * (self.factor_bytes + BLOCK * BLOCK * self.bits // 8)

    def num_units(self, num_inputs: int) -> int:
        """Returns the units of a row, which fill it."""
        return -(-num_inputs // (self.groups * BLOCK))


def _packed(form: BlockForm) -> PackedForm:
    low, high, offset, table, is_unsigned, _ = form.codes
    bits = max(4, low.num_bits + (0 if high is None else high.num_bits))
    is_signed = bits == 8 and not is_unsigned
    return PackedForm(
        bits,
        offset=128 if is_signed or table is not None else offset,
        scale=form.scale.format,
        groups=form.num_values // BLOCK,
        has_minimum=form.minimum_byte is not None,
        has_zero=form.zero_byte is not None,
        num_factors=0 if form.factors is None else BLOCK // form.group,
        table=0 if table is None else TABLES.index(table) + 1,
    )


FORMS = {
    **{name: _packed(form) for name, form in (GGUF_FORMS | INTEGER_FORMS).items()},
    "int4": PackedForm(4, offset=8, scale=NumberFormat.BF16),
    "int8": PackedForm(8, offset=128, scale=NumberFormat.BF16, groups=0),
}
"""By name. The last two are what quantization makes (kernels/operations/quantize.py)."""
