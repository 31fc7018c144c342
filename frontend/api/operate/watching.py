"""The endpoints that report a frontend's state, and their replies as files of a snapshot."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from frontend.api.operate.health import HealthApi
from frontend.api.operate.metrics import MetricsApi
from frontend.api.operate.requests import RequestsApi
from messages.control.admin import Acknowledged, ProcessResult, WriteState


class Watching(NamedTuple):
    """The endpoints that report the server's state, over HTTP and in snapshots."""

    health: HealthApi
    requests: RequestsApi
    metrics: MetricsApi

    def write_files(self, command: WriteState) -> ProcessResult:
        """Writes `health.json`, `requests.json` and `metrics`, for servers that may no longer answer over HTTP.

        Requests have their whole timelines, without their texts. Raises `OSError`.
        """
        directory = Path(command.directory)
        (directory / "health.json").write_bytes(msgspec.json.format(msgspec.json.encode(self.health.find_health())))
        found = self.requests.find_open().requests
        shown = b",\n".join(each.shown for each in found)
        (directory / "requests.json").write_bytes(b"[" + shown + b"]\n")
        (directory / "metrics").write_bytes(self.metrics.own_text())
        return Acknowledged(f"{len(found)} open requests")
