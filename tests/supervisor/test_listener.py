import os
import socket
from pathlib import Path

import pytest

from messages.errors import BootError
from runtime.lifeline import make_lifeline
from runtime.run_dir import claim
from supervisor.listener import base_url, open_listener


def test_port_0_becomes_a_real_port_that_accepts(tmp_path: Path):
    with open_listener("127.0.0.1", 0, tmp_path / "run") as listener:
        port = listener.getsockname()[1]
        assert port > 0
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_of_another_program_is_notified_at_once(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BootError, match=f"port {port} is in use by another program"):
            open_listener("127.0.0.1", port, tmp_path / "run")


def test_a_port_of_another_server_of_ours_is_notified_with_its_run_directory(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        run_dir, lock = claim(tmp_path / "run")
        lifeline = make_lifeline(run_dir)
        with pytest.raises(BootError, match=f"another server of this program runs on it .run directory {run_dir.path}"):
            open_listener("127.0.0.1", other.getsockname()[1], run_dir.path)
        os.close(lifeline)
        os.close(lock)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host"])
def test_an_address_that_is_not_ours_is_notified(host: str, tmp_path: Path):
    with pytest.raises(BootError, match="--host"):
        open_listener(host, 0, tmp_path / "run")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("localhost", "http://localhost:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_the_address_is_one_that_a_client_on_this_machine_can_use(host: str, url: str):
    assert base_url(host, 80) == url
