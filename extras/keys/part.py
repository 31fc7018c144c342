"""Keys with names in a frontend: their limits, usage and metrics. Without `--api-keys` nothing is done."""

from pathlib import Path

from extras.keys.config import KeysConfig
from extras.keys.ledger import SUFFIX, Ledger
from extras.keys.meter import Meter
from extras.keys.metrics import KeyCollector
from extras.keys.table import open_table
from extras.keys.usage_api import UsageApi, using
from frontend.extras import FrontendContext, FrontendPart


class KeysPart(FrontendPart):
    """Raises `BootError` for a file that cannot be used."""

    def __init__(self, context: FrontendContext):
        path = KeysConfig.of(context.link.config).api_keys
        self._meter = Meter(open_table(path), Ledger(Path(path + SUFFIX))) if path else None
        if self._meter is not None:
            self.endpoints = using(UsageApi(self._meter))
            self.shared_collectors = (KeyCollector(self._meter),)
            context.service.on_open.append(self._meter.enter)
            context.service.on_response.append(self._meter.leave)

    def close(self) -> None:
        if self._meter is not None:
            self._meter.ledger.close()


make_part = KeysPart
