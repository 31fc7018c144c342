"""Keys with names in a frontend: their limits, usage and metrics. Without `--api-keys` nothing is done."""

from extras.keys.config import KeysConfig
from extras.keys.ledger import Ledger
from extras.keys.meter import Meter
from extras.keys.metrics import KeyCollector
from extras.keys.table import open_table
from extras.keys.usage_api import UsageApi, using
from frontend.extras import FrontendContext, FrontendPart
from messages.config.server import Config


def open_meter(config: Config) -> Meter | None:
    """Returns `None` without `--api-keys`. Raises `BootError` for a file that cannot be used."""
    section = KeysConfig.of(config)
    return Meter(open_table(path), Ledger(section.usage_file)) if (path := section.key_file) is not None else None


class KeysPart(FrontendPart):
    """Raises `BootError`. In a server of several models, the router shows the usage of all."""

    def __init__(self, context: FrontendContext):
        config = context.link.config
        self._meter = open_meter(config)
        if self._meter is not None:
            self.endpoints = using(UsageApi(self._meter))
            self.shared_collectors = () if config.http.is_private else (KeyCollector(self._meter),)
            context.service.on_open.append(self._meter.enter)
            context.service.on_response.append(self._meter.leave)

    def tick(self) -> None:
        if self._meter is not None:
            self._meter.table.follow()

    def close(self) -> None:
        if self._meter is not None:
            self._meter.ledger.close()


make_part = KeysPart
