"""A small HTTP server that plays a server of models for the pages: a model is loaded when the test sets it."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from extras.live.page_files import CHAT, FOLDER, HEADERS, PIPELINE, TYPES

CALL = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
EVENTS = {"content-type": "text/event-stream"}
NO_HEADERS: Mapping[str, str] = {}
PAGES = {"/": CHAT, "/pipeline": PIPELINE}


class ModelsServer:
    """`requests`: the chats that were asked for. A chat with a model that is not loaded waits for `loads`."""

    def __init__(self) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self.requests: list[dict[str, Any]] = []
        self.streams: list[str] = []
        self.is_full = False
        self.place: dict[str, Any] | None = None
        """The place in the queue that a chat is shown, until it is `None`."""
        self.changed = threading.Condition()
        for name, size in (("small", 150_000_000), ("large", 4_000_000_000), ("vectors", 90_000_000)):
            modality = "embedding" if name == "vectors" else "text"
            self.models[name] = {"id": name, "size": size, "architecture": {"output_modalities": [modality]}}
            self.set(name, "unloaded")
        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *arguments: _Exchange(*arguments, state=self)
        )
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def set(self, name: str, value: str, **status: Any) -> None:
        with self.changed:
            self.models[name]["status"] = {"value": value, **status}
            self.changed.notify_all()

    def leave_queue(self) -> None:
        with self.changed:
            self.place = None
            self.changed.notify_all()

    def wait_until_loaded(self, name: str) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.models[name]["status"]["value"] == "loaded", 60.0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)


class _Exchange(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, state: ModelsServer):
        self._state = state
        super().__init__(*arguments)

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        state = self._state
        if path == "/v1/models":
            self._reply({"data": list(state.models.values())})
        elif path in PAGES or path.startswith("/page/"):
            file = FOLDER / PAGES.get(path, path.removeprefix("/page/"))
            self._reply(file.read_bytes(), headers={**HEADERS, "content-type": TYPES[file.suffix]})
        elif path == "/live":
            state.streams.append(self.headers["X-Model"])
            self._reply(b"", headers=EVENTS)
        else:
            self._reply({"error": {"message": "no such request"}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        state = self._state
        if self.path in ("/models/load", "/models/unload"):
            state.set(body["model"], {"/models/load": "loading", "/models/unload": "unloaded"}[self.path])
            self._reply({"success": True})
        elif state.is_full:
            self._reply({"error": {"message": "large still loads"}}, 503, {"Retry-After": "7"})
        else:
            state.requests.append(body)
            if state.models[body["model"]]["status"]["value"] == "unloaded":
                state.set(body["model"], "loading", progress={"phase": "loading weights", "fraction": 0.43})
            state.wait_until_loaded(body["model"])
            delta = (
                {"tool_calls": [{"index": 0, **CALL}]}
                if _calls(body)
                else {"content": f"I am {body['model']}.", "reasoning_content": "Who am I?"}
            )
            choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if _calls(body) else "stop"}
            usage = {"prompt_tokens": 5, "completion_tokens": 2}
            event = json.dumps({"choices": [choice], "usage": usage})
            self._stream(f"data: {event}\n\ndata: [DONE]\n\n".encode())

    def _stream(self, data: bytes) -> None:
        state = self._state
        if state.place is None:
            self._reply(data, headers=EVENTS)
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", EVENTS["content-type"])
        self.end_headers()
        self.wfile.write(f": progress {json.dumps(state.place)}\n\n".encode())
        with state.changed:
            assert state.changed.wait_for(lambda: state.place is None, 60.0)
        self.wfile.write(data)

    def _reply(self, content: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _calls(body: dict[str, Any]) -> bool:
    """True for a question with tools, which the model answers with a call."""
    return "tools" in body and body["messages"][-1]["role"] == "user"
