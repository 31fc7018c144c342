"""The questions to a server before it is measured, and the errors if it cannot be."""

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerFacts, ServerUnavailableError, ask_server

READY = (200, {"status": "ready"})


@contextlib.contextmanager
def json_server(answers: dict[str, tuple[int, object]]) -> Iterator[Target]:
    """Serves one JSON document a path."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = answers[self.path]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Target("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("keys", [(), ("facts",), ("config", "facts")])
def test_facts_are_found_wherever_the_reply_keeps_them(tmp_path: Path, keys: tuple[str, ...]) -> None:
    info: dict[str, object] = {
        "served_names": ["tiny", "other"],
        "vocab_size": 2048,
        "max_model_len": 512,
        "tokenizer_dir": str(tmp_path),
    }
    for key in reversed(keys):
        info = {"version": "1", key: info}
    with json_server({"/health": READY, "/server_info": (200, info)}) as target:
        assert ask_server(target) == ServerFacts("tiny", 2048, 512, tmp_path)


def test_a_tokenizer_directory_of_another_machine_is_none() -> None:
    info = {"vocab_size": 65, "max_model_len": 128, "tokenizer_dir": "/not/here"}
    with json_server({"/health": READY, "/server_info": (200, info)}) as target:
        assert ask_server(target) == ServerFacts("?", 65, 128, None)


@pytest.mark.parametrize(
    ("health", "info", "why"),
    [
        ((503, {"status": "starting"}), READY, r"not ready \(503\).*starting"),
        ((401, {}), READY, "SLUICE_API_KEY"),
        (READY, (404, {"error": {"message": "no such path"}}), "404: no such path"),
        (READY, (200, {"version": "1"}), "names no vocab_size"),
        (READY, (200, ["?"]), "names no vocab_size"),
    ],
)
def test_servers_that_cannot_be_measured(health: tuple[int, object], info: tuple[int, object], why: str) -> None:
    with (
        json_server({"/health": health, "/server_info": info}) as target,
        pytest.raises(ServerUnavailableError, match=why),
    ):
        ask_server(target)


def test_nothing_answers() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ServerUnavailableError, match=r"nothing answers.*launch\.py.*--url"):
            ask_server(Target("127.0.0.1", unused.getsockname()[1]))
