"""The flag of traces."""

from typing import Annotated, ClassVar

from messages.config.flag import Flag
from messages.config.server import Config, ExtraConfig
from messages.errors import UsageError


class TracingConfig(ExtraConfig, frozen=True, kw_only=True):
    """Traces"""

    EXTRA: ClassVar[str] = "tracing"

    otlp_endpoint: Annotated[
        str,
        Flag(
            "OpenTelemetry collector that receives a trace of each request (OTLP over HTTP), such as "
            "http://localhost:4318; requires .venv/bin/pip install -e '.[otlp]'"
        ),
    ] = ""

    def check(self, config: Config) -> Config:
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise UsageError(f"--otlp-endpoint: {self.otlp_endpoint} is not a URL, as http://localhost:4318 is")
        return config
