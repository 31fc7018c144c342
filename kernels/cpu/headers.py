"""The C headers that are written from tables in Python, when the kernels are built."""

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path

from kernels.arguments.block_forms import FORMS as STORED_FORMS
from kernels.arguments.block_forms import TABLES, BlockForm, NumberFormat, SixBits
from kernels.arguments.packed_forms import FORMS, PackedForm
from kernels.cpu.arguments import DECLARATIONS, MAX_WORDS, STATE_ROWS, STRUCTURES

SIGN_BIT = 128


def _block_forms() -> str:
    """Returns the forms of weights: see source/block_layout.h."""
    stored = [number for number, name in enumerate(FORMS) if name in STORED_FORMS]
    tables = [_braced(entry + SIGN_BIT for entry in table) for table in TABLES]
    lines = [
        f"enum {{ {', '.join(f'BLOCK_{number_format.name}' for number_format in NumberFormat)} }};",
        f"static const block_form block_forms[] = {_braced(_fields(_form(form)) for form in FORMS.values())};",
        f"static const block_source block_sources[] = {_braced(_source(STORED_FORMS.get(name)) for name in FORMS)};",
        f"static const uint8_t block_tables[][16] __attribute__((aligned(16))) = {_braced(tables)};",
        f"#define BLOCK_STORED_FORMS(FORM) {' '.join(f'FORM({number})' for number in stored)}",
    ]
    return "".join(f"{line}\n" for line in lines)


def _form(form: PackedForm) -> dict[str, object]:
    return {name: int(value) for name, value in vars(form).items()}


def _source(form: BlockForm | None) -> str:
    if form is None:
        return "{0}"
    factors = form.factors
    fields: dict[str, object] = {
        "scale_byte": form.scale.first_byte,
        "minimum_byte": form.minimum_byte or 0,
        "zero_byte": form.zero_byte or 0,
        "flip": SIGN_BIT if form.codes.low.num_bits == 8 and not form.codes.is_unsigned else 0,
        "low": _braced(form.codes.low),
        "high": _braced(form.codes.high or (0,)),
    }
    if isinstance(factors, SixBits):
        fields |= {"has_six_bits": 1, "low_factors": _braced((factors.first_byte, 6, 0))}
    elif factors is not None:
        fields |= {"low_factors": _braced(factors.low), "high_factors": _braced(factors.high or (0,))}
        fields["factor_offset"] = factors.offset
    return _fields(fields)


def _fields(values: Mapping[str, object]) -> str:
    return _braced(f".{name} = {value}" for name, value in values.items())


def _braced(values: Iterable[object]) -> str:
    return f"{{{', '.join(str(value) for value in values)}}}"


def _arguments() -> str:
    """Returns what is included once, and then for each number format: the structures and the functions."""
    lines = [
        "#ifndef SLUICE_ARGUMENTS_H\n#define SLUICE_ARGUMENTS_H",
        f"enum {{ MAX_WORDS = {MAX_WORDS} }};",
        f"typedef struct {{\n{STATE_ROWS}\n}} state_rows;\n#endif\n#ifdef FORMAT",
    ]
    for operations, declaration in DECLARATIONS.items():
        first, *others = operations.split()
        structure = f"NAME({first}_arguments)"
        lines.append(f"typedef struct {{{declaration.replace('STATE_ROWS', 'state_rows rows;')}}} {structure};")
        lines.append(f'_Static_assert(sizeof({structure}) == {ctypes.sizeof(STRUCTURES[first])}, "as in Python");')
        lines += [f"PUBLIC int NAME({operation})(const {structure} *of);" for operation in (first, *others)]
    return "\n".join([*lines, "#endif\n"])


HEADERS = {"arguments.h": _arguments(), "block_forms.h": _block_forms()}
"""The text of each header by its name."""


def write_headers(directory: Path) -> list[str]:
    """Writes the headers; returns the compiler's flags to find them."""
    for name, text in HEADERS.items():
        (directory / name).write_text(text, encoding="ascii")
    return ["-I", str(directory)]
