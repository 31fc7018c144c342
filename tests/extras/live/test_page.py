"""The live page's files: all are served, none loads anything from elsewhere, and no other file can be had."""

import re

import pytest

from extras.live.page_files import FOLDER
from tests.frontend.frontend_run import FrontendRun

NAMES = sorted(path.name for path in FOLDER.iterdir())
OURS = [name for name in NAMES if not name.startswith("markdown-it.")]
"""Without the library, whose text contains addresses that it never loads: the policy forbids it."""
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}


def test_the_page_and_its_files_are_served_under_a_strict_policy(server: FrontendRun):
    for path in ("/", "/pipeline", *(f"/page/{name}" for name in NAMES)):
        reply = server.client.get(path)
        assert reply.status_code == 200, path
        assert reply.headers["content-type"].split(";")[0] == TYPES[path.rpartition(".")[2] if "." in path else "html"]
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert {policy["script-src"], policy["style-src"], policy["connect-src"]} == {"'self'"}
        assert reply.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["none.js", "..%2fapi%2fpage.py", "%2e%2e/api/page.py", "chat.html/"])
def test_nothing_else_is(server: FrontendRun, name: str):
    assert server.client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize("name", OURS)
def test_a_file_loads_only_files_that_are_there(name: str):
    text = (FOLDER / name).read_text(encoding="utf-8")
    foreign = set(re.findall(r"""https?://[^\s"'`<)]+|url\((?!#)[^)]*\)""", text))
    assert foreign <= {"http://www.w3.org/2000/svg"}, "a namespace is a name, and loads nothing"
    loaded = re.findall(r"""(?:src|href)="page/([^"]+)"|(?:from|import) "\./([^"]+)\"""", text)
    assert {one or other for one, other in loaded} <= set(NAMES)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), "the policy forbids what is inline"
