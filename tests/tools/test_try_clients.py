"""The driver of clients: every client has its script, and a line names the steps that work. Nothing is installed."""

import sys
from pathlib import Path

import pytest

from tools import try_clients
from tools.try_clients import CLIENTS, SCRIPTS, Client, main

FAKE = """
from steps import MODEL, URL, check

def chat():
    check((URL, MODEL) == ("http://here", "m"), "not told where")

def call():
    return "the model made no call"

def schema():
    check(BROKEN, "no\\nperson")
"""


def test_every_client_has_a_script_and_every_script_a_client():
    scripts = {file.stem.removeprefix("with_"): file.suffix for file in SCRIPTS.glob("with_*")}
    assert scripts == {name: ".mjs" if client.is_npm else ".py" for name, client in CLIENTS.items()}
    assert len(scripts) >= 12


@pytest.mark.parametrize("is_good", [True, False])
def test_a_line_tells_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_good: bool
):
    (tmp_path / "steps.py").write_text((SCRIPTS / "steps.py").read_text())
    (tmp_path / "with_fake.py").write_text(FAKE.replace("BROKEN", str(is_good)))
    (tmp_path / "fake").mkdir()
    monkeypatch.setattr(try_clients, "SCRIPTS", tmp_path)
    monkeypatch.setattr(try_clients, "CLIENTS", {"fake": Client(["fake-client"])})
    command = [sys.executable, str(tmp_path / "steps.py"), "fake"]
    monkeypatch.setattr(try_clients, "_install_python", lambda name, folder, packages: (command, "1.2"))
    assert main(["--url", "http://here/", "--model", "m", "--folder", str(tmp_path)]) == (0 if is_good else 1)
    works = "fake-client 1.2: chat, call (the model made no call)"
    rest = ", schema work\n" if is_good else " work; schema fails: AssertionError: no person\n"
    assert capsys.readouterr().out == works + rest


def test_a_client_that_cannot_be_installed_is_a_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "cohere" / "bin").mkdir(parents=True)
    (tmp_path / "cohere" / "installed").touch()
    (tmp_path / "cohere" / "bin" / "python").symlink_to("/bin/false")
    assert main(["cohere", "--model", "m", "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().out.startswith("cohere: cannot be tried: ")
    with pytest.raises(SystemExit):
        main(["other"])
