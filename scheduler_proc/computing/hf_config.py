"""A model's config.json, read with errors that name the field."""

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from messages.errors import BootError, cut
from runtime.model_files import read_config

MAX_COUNT = 1 << 24
"""The maximum of any count in config.json, since counts determine loops and allocations."""

MAX_NUMBER = 1e30
MAX_LAYERS = 1_000


Value = TypeVar("Value", int, str)
Check = Callable[[Any], bool]


class HfConfig:
    """The fields of a config.json. Each getter raises `BootError` if a field is missing or of the wrong kind."""

    def __init__(self, fields: dict[str, Any], where: str = "config.json"):
        self._fields = fields
        self._where = where

    def count(self, name: str, default: int | None = None, most: int = MAX_COUNT, least: int = 1) -> int:
        """Returns an integer from `least` to `most`. A field that is null counts as missing, here and below."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, value, "a positive integer" if least else "an integer from 0 on")
        if value > most:
            raise self.error(name, value, f"at most {most}")
        return value

    def choice(self, name: str, supported: Sequence[Value], default: Value | None = None) -> Value:
        """Returns a field that has one of these values. Raises `BootError` that names them."""
        value = self._get(name, default)
        if value not in supported or isinstance(value, bool):
            raise self.refuse(name, value, f"supported is {', '.join(map(str, supported))}")
        return value

    def optional_count(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.count(name)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number."""
        return float(self._read(name, default, "a positive number", _is_positive))

    def optional_number(self, name: str) -> float | None:
        return None if self._fields.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        return self._read(name, default, "true or false", lambda value: isinstance(value, bool))

    def text(self, name: str, default: str | None = None) -> str:
        return self._read(name, default, "a text", lambda value: isinstance(value, str))

    def texts(self, name: str) -> list[str]:
        return self._read_list(name, "a list of texts", lambda item: isinstance(item, str))

    def indices(self, name: str) -> list[int]:
        return self._read_list(name, "a list of indices", lambda item: type(item) is int and item >= 0)

    def integers(self, name: str, default: int | None = None) -> list[int]:
        """Returns a list of integers, or the only one, which may be negative."""
        value = self._get(name, default)
        value = value if isinstance(value, list) else [value]
        if not value or len(value) > MAX_LAYERS or not all(type(item) is int for item in value):
            raise self.error(name, value, "an integer or a list of integers")
        return value

    @property
    def num_layers(self) -> int:
        return self.count("num_hidden_layers", most=MAX_LAYERS)

    def numbers(self, name: str) -> list[float]:
        return [float(item) for item in self._read_list(name, "a list of positive numbers", _is_positive)]

    def limits(self, name: str) -> tuple[float, float]:
        """Returns the smallest and the largest value, 0 and infinity if the field is missing.

        Infinity may be written as Python's or transformers' JSON has it.
        """
        value = self._get(name, [0.0, inf])
        match (
            [inf if each == {"__float__": "Infinity"} else each for each in value] if isinstance(value, list) else value
        ):
            case [int() | float() as low, int() | float() as high] if 0 <= low < high:
                return float(low), float(high)
            case _:
                raise self.error(name, value, "two numbers, a smaller and a larger one")

    def optional_pair(self, name: str) -> tuple[int, int] | None:
        return None if self._fields.get(name) is None else self.pair(name)

    def pair(self, name: str) -> tuple[int, int]:
        """Returns a list of two positive integers."""
        value = self._get(name, None)
        match value:
            case [int(first), int(second)] if 0 < first <= MAX_COUNT and 0 < second <= MAX_COUNT:
                return first, second
            case _:
                raise self.error(name, value, f"two integers from 1 to {MAX_COUNT}")

    def section(self, name: str) -> "HfConfig | None":
        """Returns a field that is itself an object, `None` if it is missing."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return HfConfig(value, f"{self._where}: {name}")

    def names(self) -> list[str]:
        return list(self._fields)

    def sections(self) -> dict[str, "HfConfig"]:
        """Returns all fields, each of which is an object."""
        return {name: self.section(name) or HfConfig({}) for name in self._fields}

    def overridden(self, by: "HfConfig") -> "HfConfig":
        """Returns these fields with those of `by` in place of fields of the same names."""
        return HfConfig(self._fields | by._fields, by._where)

    def with_old_names(self, names: Mapping[str, str]) -> "HfConfig":
        """Returns these fields, also under the new names of those with old ones."""
        renamed = {new: self._fields[old] for old, new in names.items() if old in self._fields}
        return HfConfig(renamed | self._fields, self._where)

    def refuse(self, name: str, value: object, reason: str) -> BootError:
        """Returns the error for a well-formed value that this server does not support."""
        return BootError(f"{self._where}: {name} is {_shown(value)}: {reason}")

    def refuse_flag(self, name: str, reason: str, *, refused: bool = True) -> None:
        """Raises `BootError` if a flag has this value, which is not its default."""
        if self.flag(name, not refused) == refused:
            raise self.refuse(name, refused, reason)

    def error(self, name: str, value: object, requested: str) -> BootError:
        return BootError(f"{self._where}: {name} must be {requested}, not {_shown(value)}")

    def _read(self, name: str, default: object, requested: str, is_right: Check) -> Any:
        value = self._get(name, default)
        if not is_right(value):
            raise self.error(name, value, requested)
        return value

    def _read_list(self, name: str, requested: str, is_right: Check) -> list[Any]:
        return self._read(name, [], requested, lambda value: isinstance(value, list) and all(map(is_right, value)))

    def _get(self, name: str, default: object) -> Any:
        value = self._fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise BootError(f"{self._where}: {name} is missing")
        return default


def read_hf_config(model_dir: Path) -> HfConfig:
    """Raises `BootError` if there is no config.json or it is not a JSON object."""
    return HfConfig(read_config(model_dir / "config.json"))


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= MAX_NUMBER


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        text = "a deeply nested value"
    return cut(text)
