"""Descriptions of the columns of a step: the number format of each, and what it has one entry per.

A struct of columns annotates each of its `bytes` fields with a `Column`. Slicing, joining, filling and reading use only
these annotations, so a new column is described once, in its struct.
"""

import functools
import typing
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from messages.columns import FLOAT32, INT32, INT64, unpack_int32

T = TypeVar("T", bound=msgspec.Struct)

ITEMSIZES = {typecode: array(typecode).itemsize for typecode in (INT32, INT64, FLOAT32)}
"""Bytes by typecode, precomputed because every step needs them."""


@dataclass(frozen=True, eq=False)
class Axis:
    """What a column has one entry per. The entries of every axis except the outermost belong to entries of `within`.

    One of the other fields defines to which. It names a field of the same struct, or of the enclosing one.
    """

    name: str
    within: "Axis | None" = None
    indices: str = ""
    """An int32 column of this axis, ascending: the entry of `within` that each entry belongs to."""
    counts: str = ""
    """An int32 column of `within`: the number of consecutive entries that belong to each of its entries."""
    width: str = ""
    """A number: entries per entry of `within`."""
    leading: str = ""
    """A number n: the first n entries of `within` have one entry each."""


@dataclass(frozen=True)
class Column:
    """`typecode` is that of `array.array`. An optional column may be empty: then every entry is `fill`."""

    typecode: str
    axis: Axis
    fill: float = 0
    """The value of entries that request nothing, and of padding."""
    dummy: float = 0
    """The value of entries in a dummy step, which must cost as much as any real step."""
    is_optional: bool = False

    @property
    def itemsize(self) -> int:
        return ITEMSIZES[self.typecode]

    def pack(self, values: Sequence[float]) -> bytes:
        """Returns the values as a column."""
        return array(self.typecode, values).tobytes()

    def filled(self, size: int, value: float) -> bytes:
        """Returns a column of `size` equal entries."""
        return array(self.typecode, [value]).tobytes() * size


@functools.cache
def columns_of(struct: type[msgspec.Struct]) -> Mapping[str, Column]:
    """Returns the columns of a struct by field name, without those of nested structs."""
    hints = typing.get_type_hints(struct, include_extras=True)
    found: dict[str, Column] = {}
    for name in struct.__struct_fields__:
        column = next((part for part in typing.get_args(hints[name]) if isinstance(part, Column)), None)
        if column is not None:
            found[name] = column
    return found


def fill_columns(
    struct: type[msgspec.Struct], sizes: Mapping[Axis, int], is_dummy: bool = False, **known: Any
) -> dict[str, Any]:
    """Returns the columns of `struct`: those in `known`, and the others with `sizes` entries of their fill value.

    An axis that is not in `sizes` has no entries. A dummy has all columns, with the values that cost most; otherwise
    optional columns are left empty.
    """
    filled = {
        name: b""
        if column.is_optional and not is_dummy
        else column.filled(sizes.get(column.axis, 0), column.dummy if is_dummy else column.fill)
        for name, column in columns_of(struct).items()
    }
    return filled | known


def slice_columns(columns: T, axis: Axis, start: int, stop: int, **changes: Any) -> T:
    """Returns the columns for the entries `start` to `stop` (exclusive) of `axis` and everything that belongs to them.

    Indices are relative to the new first entries. A nested struct of which nothing is left becomes `None`.
    """
    return _slice(columns, {axis: range(start, stop)}, columns, changes)


def join_columns(parts: Sequence[T]) -> T:
    """Concatenates the columns of `parts`, which must have no indices and the same width."""
    columns = columns_of(type(parts[0]))
    joined = {name: b"".join(getattr(part, name) for part in parts) for name in columns}
    return msgspec.structs.replace(parts[0], **joined)


def _slice(columns: T, spans: dict[Axis, range], around: msgspec.Struct, changes: Mapping[str, Any]) -> T:
    described = columns_of(type(columns))
    taken: dict[str, Any] = {}
    for name in columns.__struct_fields__:
        value, column = getattr(columns, name), described.get(name)
        if column is not None:
            taken[name] = _slice_column(columns, name, column, spans, around) if value else value
        elif isinstance(value, msgspec.Struct):
            part = _slice(value, spans, columns, {})
            taken[name] = part if any(getattr(part, inner) for inner in columns_of(type(part))) else None
        else:
            taken[name] = value
    return type(columns)(**{**taken, **changes})


def _slice_column(
    columns: msgspec.Struct, name: str, column: Column, spans: dict[Axis, range], around: msgspec.Struct
) -> bytes:
    span, size = _span(column.axis, columns, around, spans), column.itemsize
    part = getattr(columns, name)[size * span.start : size * span.stop]
    if name == column.axis.indices:
        assert column.axis.within is not None
        first = _span(column.axis.within, columns, around, spans).start
        return column.pack([index - first for index in unpack_int32(part)])
    if column.is_optional and part == column.filled(len(span), column.fill):
        return b""
    return part


def _span(axis: Axis, columns: msgspec.Struct, around: msgspec.Struct, spans: dict[Axis, range]) -> range:
    """Returns the span of `axis` that belongs to the spans in `spans`, and adds it there."""
    known = spans.get(axis)
    if known is not None:
        return known
    assert axis.within is not None, f"no span for the outermost axis, {axis.name}"
    outer = _span(axis.within, columns, around, spans)
    if axis.indices:
        indices = unpack_int32(_field(axis.indices, columns, around))
        span = range(bisect_left(indices, outer.start), bisect_left(indices, outer.stop))
    elif axis.counts:
        counts = unpack_int32(_field(axis.counts, columns, around))
        first = sum(counts[: outer.start])
        span = range(first, first + sum(counts[outer.start : outer.stop]))
    elif axis.width:
        width = _field(axis.width, columns, around)
        span = range(width * outer.start, width * outer.stop)
    else:
        num_leading = _field(axis.leading, columns, around)
        span = range(min(outer.start, num_leading), min(outer.stop, num_leading))
    spans[axis] = span
    return span


def _field(name: str, columns: msgspec.Struct, around: msgspec.Struct) -> Any:
    return getattr(columns if name in columns.__struct_fields__ else around, name)
