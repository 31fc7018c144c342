"""`GET /`, `/pipeline` and `/page/…`: a chat and the live page, from the files in `extras/live/page/`.

They load nothing from anywhere else. Browsers keep files, whose addresses have a digest of all of them.
"""

import gzip
import hashlib
from functools import cached_property, lru_cache, partial
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request

from frontend.http.endpoint import Endpoint
from frontend.http.responses import PlainReply

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
    ".json": "application/json",
    ".woff2": "font/woff2",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
KEPT, CHECKED = "public, max-age=31536000, immutable", "no-cache"


compress = lru_cache(maxsize=128)(gzip.compress)


class PageApi:
    @cached_property
    def _files(self) -> dict[str, bytes]:
        paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
        return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}

    @cached_property
    def version(self) -> str:
        """A digest of all files: modules load each other by relative addresses, so all have the same."""
        digest = hashlib.sha256()
        for name, content in self._files.items():
            digest.update(name.encode() + hashlib.sha256(content).digest())
        return digest.hexdigest()[:16]

    async def chat(self, request: Request) -> PlainReply:
        is_ollama = request.headers.get("user-agent", "").startswith("ollama")
        return self._page(request, RUNNING if is_ollama else CHAT)

    async def pipeline(self, request: Request) -> PlainReply:
        return self._page(request, PIPELINE)

    def _page(self, request: Request, name: str) -> PlainReply:
        addressed = self._files[name].replace(b'"page/', f'"page/{self.version}/'.encode())
        return self._reply(request, name, addressed, CHECKED)

    async def file(self, request: Request) -> PlainReply:
        """Raises `HTTPException` (404) for what is no file of the page. Browsers do not keep another version's file."""
        name = request.path_params["name"]
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404)
        return self._reply(request, name, content, KEPT if request.path_params["version"] == self.version else CHECKED)

    def _reply(self, request: Request, name: str, content: bytes, caching: str) -> PlainReply:
        suffix = Path(name).suffix
        headers = {**HEADERS, "cache-control": caching, "vary": "accept-encoding"}
        if suffix != ".woff2" and "gzip" in request.headers.get("accept-encoding", ""):  # fonts are compressed
            content = compress(content)
            headers["content-encoding"] = "gzip"
        return PlainReply(content, headers=headers, media_type=TYPES[suffix])


def showing_pages(page: PageApi) -> list[Endpoint]:
    """Returns the endpoints of the pages, for people."""
    page_file = partial(Endpoint, summary="The pages", access="public", is_early=True, is_described=False)
    return [
        page_file("/", page.chat),
        page_file("/pipeline", page.pipeline),
        page_file("/page/{version}/{name:path}", page.file, is_polled=True),
    ]
