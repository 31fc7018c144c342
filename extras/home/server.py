"""The server of a command: one that runs already, or one that is started for the command and ends with it."""

import json
import os
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from messages.errors import SluiceError
from messages.program import START
from supervisor.client.running import find_whole_servers
from supervisor.programs import start_launcher

POLL_S = 0.1
API_KEY = "SLUICE_API_KEY"
"""The environment variable with the key of a running server that needs one."""


class StartError(SluiceError):
    """The server ended before it was ready."""


class Target(NamedTuple):
    """A server, and the name of the model that a command means."""

    url: str
    model: str

    def request(self, path: str, body: Any = None) -> HTTPResponse | HTTPError:
        """Sends a request and returns the response, to be closed, which may be an error. Raises `OSError`."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(API_KEY):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            return urlopen(Request(self.url + path, data, headers))
        except HTTPError as error:
            return error

    def models(self) -> list[dict[str, Any]]:
        """Returns the entries of `/v1/models`; at a server of several models they have a `status`. Raises `OSError`."""
        with self.request("/v1/models") as response:
            return read_reply(response)["data"]


def read_reply(response: HTTPResponse | HTTPError) -> dict[str, Any]:
    """Raises `SluiceError` with the server's own words for an error."""
    content = json.loads(response.read())
    if response.status != 200:
        raise SluiceError(content["error"]["message"])
    return content


def find_target(model: str) -> Target | None:
    """Returns the running server of this user that serves `model` or, without one, the only server that runs."""
    found = [
        Target(server.run_dir.address_file.read_text().strip(), model or server.config.facts.served_names[0])
        for server in find_whole_servers()
        if not model or model in server.config.facts.served_names
    ]
    return found[0] if len(found) == 1 or (found and model) else None


def require_target(model: str) -> Target:
    """Raises `StartError` if no server serves `model` or, without one, if not exactly one server runs."""
    target = find_target(model)
    if target is None:
        which = f"serves {model}" if model else "runs, or several do: name the model of one"
        raise StartError(f"no server of this user {which}; start one with `{START}`")
    return target


@contextmanager
def opened_server(model: str, flags: Sequence[str]) -> Generator[Target]:
    """Yields a server for `model`; one that is started here gets `flags` and ends with the block.

    Raises `StartError` with the server's messages if it does not start.
    """
    target = None if flags else find_target(model)
    if target is not None:
        yield target
        return
    with tempfile.TemporaryDirectory(prefix="sluice-run-") as folder, (Path(folder) / "log").open("w+") as log:
        run_dir = Path(folder) / "run"
        named = ("--model", model) if model else ()
        arguments = (*named, "--port", "0", "--run-dir", str(run_dir), "--no-standby", *flags)
        server = start_launcher(arguments, stdout=log, stderr=log)
        try:
            while not _is_ready(run_dir):
                if server.poll() is not None:
                    log.seek(0)
                    raise StartError(log.read().strip() or f"the server ended with exit code {server.returncode}")
                time.sleep(POLL_S)
            url = (run_dir / "address").read_text().strip()
            yield Target(url, Target(url, "").models()[0]["id"])
        finally:
            server.terminate()
            server.wait()


def _is_ready(run_dir: Path) -> bool:
    address = run_dir / "address"
    if not address.exists():
        return False
    try:
        with Target(address.read_text().strip(), "").request("/ping") as response:
            return response.status == 200
    except OSError:
        return False
