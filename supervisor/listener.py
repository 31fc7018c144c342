"""The listening socket, bound by the launcher so that a port in use is reported before a model is loaded."""

import errno
import os
import socket
import time
from pathlib import Path

from messages.errors import BootError
from runtime.lifeline import clear_run, has_launcher
from runtime.run_dir import RunDir

BACKLOG = 2048
RECLAIM_TIMEOUT_S = 3.0
"""How long the kernel may take to free the port of an abandoned run whose processes have just been killed."""


def open_listener(host: str, port: int, run_path: Path) -> socket.socket:
    """Returns a socket that listens on `host` and `port` (0: a free one).

    Processes that a killed launcher has left in `run_path` and that still hold the port are ended. Raises `BootError`
    if another process uses the port, or if the address does not belong to this machine.
    """
    try:
        return _listen(host, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise _refusal(host, port, error) from None
    run_dir = RunDir(run_path)
    if has_launcher(run_dir):
        raise BootError(
            f"port {port} is in use: another server of this program runs on it (run directory {run_path}); "
            "stop it, or choose another --port"
        )
    return _listen_when_free(host, port, RECLAIM_TIMEOUT_S if clear_run(run_dir) else 0.0)


def listen_privately(listener: socket.socket, path: Path) -> str:
    """Makes an unbound Unix socket listen at `path`; returns its address."""
    listener.bind(os.fspath(path))
    listener.listen(BACKLOG)
    return f"unix:{path}"


def base_url(host: str, port: int, scheme: str = "http") -> str:
    """Returns the address for a client on this machine."""
    if host in ("", "0.0.0.0"):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, address = found[0]
    is_ipv6 = family == socket.AF_INET6
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_ipv6)


def _listen_when_free(host: str, port: int, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return _listen(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise _refusal(host, port, error) from None
        time.sleep(0.05)


def _refusal(host: str, port: int, error: OSError) -> BootError:
    if isinstance(error, socket.gaierror):
        return BootError(f"--host: {host!r} is no address of this machine: {error.strerror}")
    if error.errno == errno.EADDRINUSE:
        return BootError(f"port {port} is in use by another program; choose another --port (0: any free one)")
    if error.errno == errno.EACCES:
        return BootError(f"port {port} may not be opened by this user; choose a --port of 1024 or above")
    return BootError(f"cannot listen on --host {host} --port {port}: {os.strerror(error.errno or 0)}")
