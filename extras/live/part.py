"""The live page and its stream in a frontend."""

from functools import partial

from extras.live.feed import LiveFeed
from extras.live.page_files import PageApi
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
    page_file = partial(Endpoint, summary="The pages", access="public", is_early=True, is_described=False)
    return [
        page_file("/", page.chat),
        page_file("/pipeline", page.pipeline),
        page_file("/page/{name}", page.file, is_polled=True),
        Endpoint("/live", live.watch, text, events=(LiveEvent,), is_early=True),
    ]
