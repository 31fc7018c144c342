"""The flag of keys with names."""

from pathlib import Path
from typing import Annotated, ClassVar

from extras.keys.key_file import read_key_file
from messages.config.flag import Flag
from messages.config.server import Config, ExtraConfig
from messages.errors import UsageError, errors_as


class KeysConfig(ExtraConfig, frozen=True, kw_only=True):
    """Keys with names"""

    EXTRA: ClassVar[str] = "keys"

    api_keys: Annotated[
        tuple[str, ...],
        Flag(
            "TOML file of keys with names, limits and shares (launch.py keys writes it), read again when it changes; "
            "a second file keeps their usage (default: the name of the first with .usage)",
            metavar="FILE",
        ),
    ] = ()

    @property
    def key_file(self) -> Path | None:
        """The file of the keys, `None` without the flag."""
        return Path(self.api_keys[0]) if self.api_keys else None

    @property
    def usage_file(self) -> Path:
        return Path(self.api_keys[1])

    def check(self, config: Config) -> Config:
        """Reads the file once, before anything starts. Raises `UsageError`."""
        if not self.api_keys:
            return config
        first, *others = (Path(name).expanduser().absolute() for name in self.api_keys)
        if len(others) > 1:
            raise UsageError("--api-keys: it takes a file of keys and, at most, one for their usage")
        with errors_as(UsageError, "--api-keys", of=UsageError):
            read_key_file(first)
        usage = others[0] if others else f"{first}.usage"
        return KeysConfig(api_keys=(str(first), str(usage))).put_into(config)
