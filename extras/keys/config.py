"""The flag of keys with names."""

from pathlib import Path
from typing import Annotated, ClassVar

from msgspec import Meta

from extras.keys.key_file import read_key_file
from messages.config.server import Config, ExtraConfig
from messages.errors import UsageError


class KeysConfig(ExtraConfig, frozen=True, kw_only=True):
    """Keys with names"""

    EXTRA: ClassVar[str] = "keys"

    api_keys: Annotated[
        str,
        Meta(
            description="TOML file of keys with names, limits and shares (launch.py keys writes it); it is read again "
            "when it changes",
            extra={"metavar": "FILE"},
        ),
    ] = ""
    key_usage: Annotated[
        str,
        Meta(
            description="file in which the usage of these keys is kept, in a writable local directory (default: "
            "the name of --api-keys with .usage)",
            extra={"metavar": "FILE"},
        ),
    ] = ""

    def check(self, config: Config) -> Config:
        """Reads the file once, before anything starts. Raises `UsageError`."""
        if not self.api_keys:
            if self.key_usage:
                raise UsageError("--key-usage needs --api-keys")
            return config
        path = Path(self.api_keys).expanduser().absolute()
        try:
            read_key_file(path)
        except UsageError as error:
            raise UsageError(f"--api-keys: {error}") from None
        usage = Path(self.key_usage or f"{path}.usage").expanduser().absolute()
        return KeysConfig(api_keys=str(path), key_usage=str(usage)).put_into(config)

    @property
    def usage_path(self) -> Path:
        return Path(self.key_usage or f"{self.api_keys}.usage")
