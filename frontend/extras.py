"""What extras add to a frontend: endpoints, metrics, gauges, and work of their own."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from prometheus_client.registry import Collector

from frontend.http.endpoint import Endpoint
from frontend.http.field_names import UnknownFields
from frontend.http.stream import OpenStreams
from frontend.parsing.model_format import ModelFormat
from frontend.service import Service
from runtime.extras import load_parts
from runtime.process import ProcessLink


class FrontendContext(NamedTuple):
    """What a part may use. `end` asks the launcher to end the server."""

    link: ProcessLink
    service: Service
    streams: OpenStreams
    model_format: ModelFormat
    unknown: UnknownFields
    end: Callable[[], Awaitable[object]]


class FrontendPart:
    """The part of an extra in a frontend. It overrides what it needs."""

    endpoints: Sequence[Endpoint] = ()
    collectors: Sequence[Collector] = ()
    """Collectors of metrics."""
    shared_collectors: Sequence[Collector] = ()
    """The same, with values that are those of all frontends together."""

    def begin(self, endpoints: Iterable[Endpoint]) -> None:
        """Is called once, with all endpoints of the frontend, before it serves. Raises `BootError`."""

    def gauges(self) -> dict[str, float]:
        """Returns sizes, as in `Frontend.gauges`."""
        return {}

    def tick(self) -> None:
        """Is called once a second."""

    def stop(self) -> None:
        """Ends what would not end soon by itself: the frontend drains, leaves or stops. May be called again."""

    def close(self) -> None:
        """Is called when the frontend has ended."""


def make_parts(context: FrontendContext) -> list[FrontendPart]:
    """Returns the parts of all installed extras. Raises `BootError`."""
    return [module.make_part(context) for module in load_parts(context.link.config, "frontend")]
