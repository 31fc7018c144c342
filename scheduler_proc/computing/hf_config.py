"""A model's config.json, read with errors that name the field."""

import json
from pathlib import Path
from typing import Any

from messages.errors import BootError


class HfConfig:
    """The fields of a config.json. Each getter raises `BootError` where a field is missing or of the wrong kind."""

    def __init__(self, fields: dict[str, Any], where: str = "config.json"):
        self._fields = fields
        self._where = where

    def count(self, name: str, default: int | None = None) -> int:
        """Returns a positive integer. A field that is null counts as missing, here and below."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, value, "a positive integer")
        return value

    def optional_count(self, name: str) -> int | None:
        return None if self._fields.get(name) is None else self.count(name)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise self.error(name, value, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a text")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, value, "a list of texts")
        return value

    def section(self, name: str) -> "HfConfig | None":
        """Returns a field that is an object itself, `None` where it is missing."""
        value = self._fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, value, "an object")
        return HfConfig(value, f"{self._where}: {name}")

    def refuse(self, name: str, value: object, reason: str) -> BootError:
        """Returns the error for a value that is well formed but that this server does not run."""
        return BootError(f"{self._where}: {name} is {json.dumps(value)}: {reason}")

    def error(self, name: str, value: object, wanted: str) -> BootError:
        return BootError(f"{self._where}: {name} must be {wanted}, not {json.dumps(value)}")

    def _get(self, name: str, default: object) -> Any:
        value = self._fields.get(name)
        if value is not None:
            return value
        if default is None:
            raise BootError(f"{self._where}: {name} is missing")
        return default


def read_hf_config(model_dir: Path) -> HfConfig:
    """Raises `BootError` where there is no config.json or it is no JSON object."""
    path = model_dir / "config.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BootError(f"{path}: cannot be read ({error.strerror}); --model needs a Hugging Face directory") from None
    except ValueError as error:
        raise BootError(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BootError(f"{path}: is not a JSON object")
    return HfConfig(fields)
