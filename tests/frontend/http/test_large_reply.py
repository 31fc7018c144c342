"""Large JSON documents are made in pieces that are the whole."""

import random
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType

from frontend.http.large_reply import PIECE, encode


class Item(msgspec.Struct, frozen=True, rename="camel"):
    long_name: str
    values: list[Any]
    other: int | UnsetType = UNSET
    map: dict[str, Any] = {}


class Tagged(msgspec.Struct, tag="kind", omit_defaults=True):
    value: int = 3


@pytest.mark.parametrize("size", [0, 1, PIECE, 3 * PIECE + 1])
def test_pieces_are_the_whole(size: int):
    numbers = [random.Random(size).random() for _ in range(size)]
    document = {
        "data": [Item('ä"', numbers), Item("b", [numbers, numbers], other=1, map={"x": [numbers], '"': None})],
        "tagged": Tagged(),
        "ids": {1: numbers},
        "nan": float("nan"),
        "none": [],
        "pairs": [(1, numbers), ("x", None)],
    }
    assert encode(document) == msgspec.json.encode(document)
