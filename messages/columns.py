"""Columns of integers and floats as raw bytes: the form of token ids and step results in messages.

The byte order is native.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated, Any

INT32, INT64, FLOAT32 = "i", "q", "f"

Int32s = Annotated[bytes, INT32]
Int64s = Annotated[bytes, INT64]
Float32s = Annotated[bytes, FLOAT32]
"""Field types for columns in messages."""


def pack_int32(values: Iterable[int]) -> bytes:
    """Returns `values` as int32 bytes. Raises `OverflowError` for a value that does not fit."""
    return array(INT32, values).tobytes()


def unpack_int32(column: bytes) -> "array[int]":
    """Returns the int32 column as an array that indexes and slices like a list."""
    return _unpack(INT32, column)


def pack_int64(values: Iterable[int]) -> bytes:
    """Returns `values` as int64 bytes. Raises `OverflowError` for a value that does not fit."""
    return array(INT64, values).tobytes()


def unpack_int64(column: bytes) -> "array[int]":
    """Returns the int64 column as an array that indexes and slices like a list."""
    return _unpack(INT64, column)


def pack_float32(values: Iterable[float]) -> bytes:
    """Returns `values` as float32 bytes."""
    return array(FLOAT32, values).tobytes()


def unpack_float32(column: bytes) -> "array[float]":
    """Returns the float32 column as an array that indexes and slices like a list."""
    return _unpack(FLOAT32, column)


def num_int32(column: bytes) -> int:
    """Returns the number of int32 values in the column, without unpacking it."""
    return len(column) // 4


def pack_counts(counts: Sequence[int]) -> bytes:
    """Packs the number of entries that each row has in another column as int32; empty if each has one."""
    return b"" if counts.count(1) == len(counts) else pack_int32(counts)


def runs_of(column: bytes, counts: bytes) -> Iterable[Sequence[int]]:
    """Returns the int32 values of each row, row after row. `counts` comes from `pack_counts`."""
    values = unpack_int32(column)
    if not counts:
        return zip(values, strict=True)
    ends = accumulate(unpack_int32(counts), initial=0)
    return [values[start:end] for start, end in pairwise(ends)]


def _unpack(typecode: str, column: bytes) -> "array[Any]":
    values: array[Any] = array(typecode)
    values.frombytes(column)
    return values
