"""A frontend's replies about itself as files of a snapshot, for servers that may no longer answer over HTTP."""

from pathlib import Path

import msgspec

from frontend.api.operate.health import HealthApi
from frontend.api.operate.metrics import MetricsApi
from frontend.api.operate.requests import RequestsApi
from messages.control.admin import Acknowledged, ProcessResult, WriteState


class StateFiles:
    """Writes `health.json`, `requests.json` and `metrics`. Requests have their whole timelines, without their texts."""

    def __init__(self, health: HealthApi, requests: RequestsApi, metrics: MetricsApi):
        self._health = health
        self._requests = requests
        self._metrics = metrics

    def write(self, command: WriteState) -> ProcessResult:
        """Raises `OSError`."""
        directory = Path(command.directory)
        (directory / "health.json").write_bytes(msgspec.json.format(msgspec.json.encode(self._health.find_health())))
        found = self._requests.find_open().requests
        shown = b",\n".join(each.shown for each in found)
        (directory / "requests.json").write_bytes(b"[" + shown + b"]\n")
        (directory / "metrics").write_bytes(self._metrics.own_text())
        return Acknowledged(f"{len(found)} open requests")
