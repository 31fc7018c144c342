"""The live page and its stream in a frontend."""

from extras.live.feed import LiveFeed
from extras.live.page_files import PageApi, showing_pages
from extras.live.stream import LiveApi
from extras.live.view import LiveEvent
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint


class LivePart(FrontendPart):
    def __init__(self, feed: LiveFeed):
        self._feed = feed
        self.endpoints = showing(LiveApi(feed), PageApi())

    def gauges(self) -> dict[str, float]:
        return {"viewers": len(self._feed)}

    def stop(self) -> None:
        self._feed.end()


def make_part(context: FrontendContext) -> LivePart:
    return LivePart(LiveFeed(context.service, context.streams))


def showing(live: LiveApi, page: PageApi) -> list[Endpoint]:
    """Returns the endpoints that show the server as it runs: the page for people, and the stream that it reads."""
    text = "Processes, edges, steps and requests: all at first, then what changes, until the server drains"
    return [
        *showing_pages(page),
        Endpoint("/live", live.watch, text, access="overall", events=(LiveEvent,), is_early=True),
    ]
