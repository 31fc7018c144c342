"""A model hub on a local port: enough of its API for a look-up and a download."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves one model, `owner/tiny`, with `files`; every other name is answered with `refusal` (status, code)."""

    def __init__(self, files: dict[str, bytes], refusal: tuple[int, str] = (404, "RepoNotFound")):
        self.files = files
        self.refusal = refusal
        self.downloads: list[str] = []
        self.ranges: list[tuple[str, int, int]] = []
        """Names, first bytes and ends of what was read of a file."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _make_answers(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _make_answers(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in ("/api/models/owner/tiny", "/api/models/owner/tiny/revision/main"):
                siblings = [{"rfilename": name} for name in hub.files]
                self._answer_json({"id": "owner/tiny", "modelId": "owner/tiny", "sha": COMMIT, "siblings": siblings})
            elif path in (f"/api/models/owner/tiny/tree/{COMMIT}", "/api/models/owner/tiny/tree/main"):
                self._answer_json(
                    [{"type": "file", "path": n, "size": len(d), "oid": _digest(d)} for n, d in hub.files.items()]
                )
            elif path.startswith("/owner/tiny/resolve/") and path.split("/", 5)[5] in hub.files:
                self._answer_file(path.split("/", 5)[5])
            elif path.startswith("/api/models/owner/tiny/revision/"):
                self._refuse(404, "RevisionNotFound")
            else:
                self._refuse(*hub.refusal)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer_file(self, name: str) -> None:
            data = hub.files[name]
            headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": COMMIT}
            begin, _, end = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            if begin and end:
                hub.ranges.append((name, int(begin), int(end) + 1))
                headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
                return self._answer(206, data[int(begin) : int(end) + 1], headers)
            if self.command == "GET":
                hub.downloads.append(name)
            return self._answer(200, data, headers)

        def _answer_json(self, value: object) -> None:
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _refuse(self, status: int, code: str) -> None:
            self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

        def _answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    return Answers


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
