"""`GET /` and `/page/…`: the live page, from the files in `extras/live/page/`. It loads nothing from anywhere else."""

from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from frontend.requests.trace import REQUEST_ID_HEADER, trace_of

FOLDER = Path(__file__).with_name("page")
INDEX = "index.html"

TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)


class PageApi:
    def __init__(self) -> None:
        self._files = {path.name: path for path in FOLDER.iterdir()}

    async def index(self, request: Request) -> "PageFile":
        return PageFile(self._files[INDEX])

    async def file(self, request: Request) -> "PageFile":
        """Raises `HTTPException` (404) for what is no file of the page."""
        path = self._files.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return PageFile(path)


class PageFile:
    """An ASGI response: one file."""

    def __init__(self, path: Path):
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, body = trace_of(scope), self._path.read_bytes()
        trace.status = 200
        headers = [
            (b"content-type", TYPES[self._path.suffix]),
            (b"content-length", str(len(body)).encode()),
            (REQUEST_ID_HEADER, trace.request_id.encode()),
            *HEADERS,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})
