"""`GET /`, `/pipeline` and `/page/…`: a chat and the live page, from the files in `extras/live/page/`.

They load nothing from anywhere else.
"""

from functools import partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request

from frontend.http.endpoint import Endpoint
from frontend.http.responses import FileReply

FOLDER = Path(__file__).with_name("page")
CHAT, PIPELINE = "chat.html", "pipeline.html"
RUNNING = "running.txt"
"""What Ollama's clients expect in place of the page."""


TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class PageApi:
    def __init__(self) -> None:
        self._files = {path.name: path for path in FOLDER.iterdir()}

    async def chat(self, request: Request) -> FileReply:
        is_ollama = request.headers.get("user-agent", "").startswith("ollama")
        return self._reply(RUNNING if is_ollama else CHAT)

    async def pipeline(self, request: Request) -> FileReply:
        return self._reply(PIPELINE)

    async def file(self, request: Request) -> FileReply:
        """Raises `HTTPException` (404) for what is no file of the page."""
        return self._reply(request.path_params["name"])

    def _reply(self, name: str) -> FileReply:
        path = self._files.get(name)
        if path is None:
            raise HTTPException(404)
        return FileReply(path, media_type=TYPES[path.suffix], headers=HEADERS)


def showing_pages(page: PageApi) -> list[Endpoint]:
    """Returns the endpoints of the pages, for people."""
    page_file = partial(Endpoint, summary="The pages", access="public", is_early=True, is_described=False)
    return [
        page_file("/", page.chat),
        page_file("/pipeline", page.pipeline),
        page_file("/page/{name}", page.file, is_polled=True),
    ]
