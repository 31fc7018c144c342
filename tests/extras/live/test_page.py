"""The pages' files: all are served, none loads anything from elsewhere, and no other file can be had."""

import gzip
import hashlib
import json
import re

import pytest

from extras.live.page_files import FOLDER, TYPES
from tests.frontend.frontend_run import FrontendRun

VENDOR = FOLDER / "vendor"
OURS = sorted(path.name for path in FOLDER.iterdir() if path.is_file())
LIBRARIES = sorted(path.name for path in VENDOR.iterdir())
"""Their texts contain addresses that they never load: the policy forbids it."""
NAMES = [*OURS, *(f"vendor/{name}" for name in LIBRARIES)]
PAGE = re.compile(r'"page/([0-9a-f]{16})/chat.js"')


def test_the_page_and_its_files_are_served_under_a_strict_policy(server: FrontendRun):
    for path in ("/", "/pipeline", *(f"/page/any/{name}" for name in NAMES)):
        reply = server.client.get(path)
        assert reply.status_code == 200, path
        assert (
            reply.headers["content-type"].split(";")[0]
            == TYPES["." + path.rpartition(".")[2] if "." in path else ".html"]
        )
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect", "font")} == {"'self'"}
        assert policy["img-src"] == "'self' blob:"  # of attached images
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-cache"


def test_browsers_keep_the_files_of_this_version_and_get_them_compressed(server: FrontendRun):
    version = PAGE.findall(server.client.get("/").text)[0]
    sent = 0
    for name in NAMES:
        with server.client.stream("GET", f"/page/{version}/{name}", headers={"accept-encoding": "gzip"}) as reply:
            raw = b"".join(reply.iter_raw())
        assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
        plain = gzip.decompress(raw) if reply.headers.get("content-encoding") == "gzip" else raw
        assert plain == (FOLDER / name).read_bytes()
        sent += len(raw) if name.endswith((".js", ".css")) and "formulas" not in name else 0
    assert sent < 170_000, "what a first visit loads"
    plain = server.client.get(f"/page/{version}/vendor/text.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == (VENDOR / "text.js").read_bytes()


@pytest.mark.parametrize(
    "name", ["none.js", "..%2fpage_files.py", "%2e%2e/page_files.py", "vendor", "vendor/", "chat.html/"]
)
def test_nothing_else_is(server: FrontendRun, name: str):
    assert server.client.get(f"/page/any/{name}").status_code == 404


def test_libraries_are_as_the_tool_made_them_and_have_their_licences():
    manifest = json.loads((VENDOR / "manifest.json").read_text(encoding="utf-8"))
    made = {
        name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in LIBRARIES if name != "manifest.json"
    }
    assert made == manifest["sha256"], "python -m tools.page_libraries"
    lock = json.loads((FOLDER.parents[2] / "tools/page_libraries/package-lock.json").read_text(encoding="utf-8"))[
        "packages"
    ]
    licences = (VENDOR / "LICENSES.txt").read_text(encoding="utf-8")
    assert {"markdown-it", "dompurify", "highlight.js", "katex"} <= set(manifest["packages"])
    for name, package in manifest["packages"].items():
        locked = lock[f"node_modules/{name}"]
        assert (package["version"], package["integrity"]) == (locked["version"], locked["integrity"])
        assert f"== {name} {package['version']} (" in licences


@pytest.mark.parametrize("name", OURS)
def test_a_file_loads_only_files_that_are_there(name: str):
    text = (FOLDER / name).read_text(encoding="utf-8")
    foreign = set(re.findall(r"""https?://[^\s"'`<)]+|url\((?!#)[^)]*\)""", text))
    assert foreign <= {"http://www.w3.org/2000/svg"}, "a namespace is a name, and loads nothing"
    loaded = re.findall(r"""(?:src|href)="page/([^"]+)"|(?:from|import|import\() ?"\./([^"]+)\"""", text)
    assert {one or other for one, other in loaded} <= set(NAMES)
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text), "the policy forbids what is inline"
