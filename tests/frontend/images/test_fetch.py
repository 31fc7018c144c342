"""Fetching of images from servers that try to lead it elsewhere, or to occupy it."""

import contextlib
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from frontend.images import addresses, fetch
from frontend.images.addresses import UrlRules, is_public
from frontend.images.fetch import Fetch
from messages.errors import RequestError, UsageError
from supervisor.flags import parse_flags
from supervisor.run import check_flags
from tests.frontend.frontend_run import FrontendRun, final, wait_until
from tests.frontend.images.pictures import PATH, image_part, picture, user, vision_config

IMAGE = b"an image, for all that this server knows"
MAX_BYTES = 1000
WHERE = "messages[0].content[0]"


class Site:
    """A web server on a loopback address. `pages` maps paths to statuses, headers and contents."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None):
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {"/image": (200, {}, IMAGE)}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.slow: dict[str, Callable[[Any], None]] = {}
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                if self.path in site.slow:
                    site.slow[self.path](self.wfile)
                    return
                status, headers, content = site.pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in {"Content-Length": f"{len(content)}", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.authority = f"{host}:{self.port}"
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://{self.authority}"

    def __enter__(self) -> "Site":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def get(site: Site, path: str = "/image", allowed: str = "") -> bytes:
    return Fetch(site.url + path, UrlRules(allowed or site.authority), WHERE, MAX_BYTES).run()


def error_of(call: Callable[[], object]) -> str:
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.info.status == 400
    assert caught.value.info.param == "messages"
    message = str(caught.value)
    assert message.startswith(f"{WHERE}: ")
    return message


def test_an_image_is_fetched_without_credentials_or_proxy(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    site.pages["/%C3%A4?q=a%20b"] = (200, {"Set-Cookie": "a=b"}, IMAGE)
    assert get(site) == get(site, "/ä?q=a b") == IMAGE
    headers = site.seen[-1][1]
    assert headers["host"] == site.authority
    assert not {"cookie", "authorization", "referer"} & headers.keys()


def test_redirects_are_followed_three_times_and_each_is_checked(site: Site):
    def redirect(path: str, url: str) -> None:
        site.pages[path] = (302, {"Location": url}, b"")

    redirect("/3", "/image")
    redirect("/2", f"{site.url}/3")
    redirect("/1", "2")
    assert get(site, "/1") == IMAGE
    redirect("/0", "/1")
    assert "redirected more than 3 times" in error_of(lambda: get(site, "/0"))
    with Site() as other:
        for url in (f"{other.url}/image", "http://169.254.169.254/latest/meta-data", f"http://localhost:{site.port}/"):
            redirect("/away", url)
            assert "images are not fetched from" in error_of(lambda: get(site, "/away"))
        for url in ("file:///etc/passwd", "ftp://127.0.0.1/x", "data:image/png;base64,AAAA", "http://a:b@127.0.0.1/"):
            redirect("/away", url)
            assert "could not be fetched" in (message := error_of(lambda: get(site, "/away"))) or "cred" in message
        assert other.seen == []


def test_what_a_server_may_send_is_bounded(site: Site):
    site.pages["/announced"] = (200, {}, b"x" * (MAX_BYTES + 1))
    site.pages["/status"] = (500, {}, b"")
    site.pages["/packed"] = (200, {"Content-Encoding": "gzip"}, b"x")
    site.pages["/cut"] = (200, {"Content-Length": "999"}, b"x")
    site.slow["/endless"] = lambda file: pour(file, b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 100)
    site.slow["/headers"] = lambda file: pour(file, b"HTTP/1.0 200 OK\r\n", b"A: b\r\n")
    site.slow["/header"] = lambda file: pour(file, b"HTTP/1.0 200 OK\r\nA: ", b"x" * 1000)
    site.slow["/chunks"] = lambda file: pour(
        file, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"64\r\n" + b"x" * 100 + b"\r\n"
    )
    assert "has 1001 bytes or more" in error_of(lambda: get(site, "/announced"))
    assert "status 500" in error_of(lambda: get(site, "/status"))
    assert "compressed" in error_of(lambda: get(site, "/packed"))
    assert "ended early" in error_of(lambda: get(site, "/cut"))
    assert "bytes or more" in error_of(lambda: get(site, "/endless"))
    assert "bytes or more" in error_of(lambda: get(site, "/chunks"))
    assert "not valid HTTP" in error_of(lambda: get(site, "/headers"))
    assert "not valid HTTP" in error_of(lambda: get(site, "/header"))


def pour(file: Any, head: bytes, piece: bytes) -> None:
    """Writes until the client closes the connection."""
    with contextlib.suppress(OSError):
        file.write(head)
        while True:
            file.write(piece)


def test_a_slow_server_is_left_when_the_fetch_is_cancelled(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "SILENCE_TIMEOUT_S", 30.0)
    is_reached, end = threading.Event(), threading.Event()

    def wait(file: Any) -> None:
        file.write(b"HTTP/1.1 200 OK\r\n\r\n")
        is_reached.set()
        end.wait(30)

    site.slow["/slow"] = wait
    running = Fetch(f"{site.url}/slow", UrlRules(site.authority), WHERE, MAX_BYTES)
    timer = threading.Thread(target=lambda: is_reached.wait(30) and running.cancel())
    timer.start()
    begun_s = time.monotonic()
    with contextlib.suppress(RequestError):
        running.run()
    assert time.monotonic() - begun_s < 10
    timer.join()
    end.set()
    with pytest.raises(RequestError):
        running.run()
    assert len(site.seen) == 1


NOT_PUBLIC = """
0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 192.0.0.1 192.0.2.1
192.88.99.1 192.168.1.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 168.63.129.16
:: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1
2001:db8::1 2002:7f00:1::1 2002:808:808::1 3fff::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 fec0::1 ff02::1 5f00::1
"""


@pytest.mark.parametrize("address", NOT_PUBLIC.split())
def test_addresses_that_are_not_public(address: str):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "172.32.0.1", "2606:4700:4700::1111", "2a00:1450:4001:80e::200e"])
def test_public_addresses(address: str):
    assert is_public(address)


HOSTS = """
127.0.0.1 127.1 0x7f000001 2130706433 0177.0.0.1 localhost localhost. [::1] [::ffff:127.0.0.1] [::ffff:7f00:1] 0 [::]
169.254.169.254
"""


@pytest.mark.parametrize("host", HOSTS.split())
@pytest.mark.parametrize("scheme", ["http", "https", "HTTP"])
def test_names_of_this_machine_are_not_public(host: str, scheme: str):
    message = error_of(Fetch(f"{scheme}://{host}/x", UrlRules("public"), WHERE, MAX_BYTES).run)
    assert "not public" in message or "not known" in message or "not a valid URL" in message


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://",
            "http:///x",
            "http://[::1",
            "http://[fe80::1%25eth0]/",
            "http://a b/",
            "http://a\\@b/",
            "http://é\0",
        ),
        *("http://u@example.com/", "http://u:p@example.com/", "http://example.com:99999/", "http://example.com:x/"),
        *("http://example.com:22/", "https://example.com:8080/", f"http://{'a' * 64}.com/", "http://x/" + "y" * 9000),
    ],
)
def test_urls_that_are_refused_before_any_name_is_resolved(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a name was resolved"))
    error_of(Fetch(url, UrlRules("public"), WHERE, MAX_BYTES).run)


def test_a_name_is_resolved_once_and_all_its_addresses_are_checked(site: Site, monkeypatch: pytest.MonkeyPatch):
    """The name has a public address at first, played by 127.0.0.2, and then that of this machine."""
    answers = [["127.0.0.2"], ["127.0.0.1"]]
    asked: list[str] = []

    def resolve(host: str, port: int, **_: Any) -> Any:
        asked.append(host)
        found = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.2")
    with Site("127.0.0.2") as public:
        url, rules = f"http://rebound.example:{public.port}/image", UrlRules(f"rebound.example:{public.port}")
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        assert Fetch(url, rules, WHERE, MAX_BYTES).run() == IMAGE
        assert asked == ["rebound.example"]
        assert "not public" in error_of(Fetch(url, rules, WHERE, MAX_BYTES).run)
        answers.append(["127.0.0.2", "127.0.0.1"])
        assert "not public" in error_of(Fetch(url, rules, WHERE, MAX_BYTES).run)
        answers.extend([["127.0.0.2"], ["127.0.0.1"]])
        public.pages["/again"] = (302, {"Location": "/image"}, b"")
        assert "not public" in error_of(Fetch(url.replace("/image", "/again"), rules, WHERE, MAX_BYTES).run)
    assert site.seen == []


@pytest.mark.parametrize("host", HOSTS.split())
def test_a_public_server_cannot_redirect_to_this_machine(host: str, monkeypatch: pytest.MonkeyPatch):
    """127.0.0.2 plays the public server, on a port that plays 80."""
    monkeypatch.setattr(addresses, "is_public", lambda address: address == "127.0.0.2" or is_public(address))
    with Site("127.0.0.2") as public:
        monkeypatch.setattr(addresses, "PORTS", {"http": public.port, "https": 443})
        public.pages["/away"] = (301, {"Location": f"http://{host}/image"}, b"")
        assert Fetch("http://127.0.0.2/image", UrlRules("public"), WHERE, MAX_BYTES).run() == IMAGE
        message = error_of(Fetch("http://127.0.0.2/away", UrlRules("public"), WHERE, MAX_BYTES).run)
        assert "not public" in message or "not known" in message
        assert [path for path, _ in public.seen] == ["/image", "/away"]


def test_the_name_in_a_certificate_is_checked(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    cert, key = certificate
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    with Site(tls=server) as known, Site("127.0.0.2", tls=server) as other:
        assert "certificate is not valid" in error_of(lambda: get(known))
        monkeypatch.setattr(fetch, "tls_context", lambda: ssl.create_default_context(cafile=str(cert)))
        assert get(known) == IMAGE
        assert "certificate is not valid" in error_of(lambda: get(other))
        assert other.seen == []


def check(*flags: str) -> str:
    return check_flags(parse_flags([*flags])).images.image_urls


def test_flags():
    assert (check(), check("--image-urls", "public")) == ("none", "public")
    rules = UrlRules(check("--image-urls", "images.example, Internal:8080,10.0.0.5,[::1]:61000"))
    urls = ("https://images.example/x", "http://IMAGES.example./x", "http://internal:8080/", "http://10.0.0.5/")
    for url in (*urls, "http://[::1]:61000/x"):
        rules.check(url, WHERE)
    for url in ("https://images.example:8443/x", "http://internal/", "http://example/", "https://10.0.0.6/"):
        error_of(lambda url=url: rules.check(url, WHERE))
    for text in ("", "a b", "http://x", "a,,b", "x/y", "a@b", "a:x"):
        with pytest.raises(UsageError, match="--image-urls must be"):
            check("--image-urls", text)


def test_a_client_that_leaves_ends_the_fetch(site: Site):
    is_reached, end = threading.Event(), threading.Event()

    def wait(file: Any) -> None:
        is_reached.set()
        end.wait(30)

    site.slow["/slow"] = wait
    image = picture()
    site.pages["/picture"] = (200, {}, image)
    with FrontendRun(vision_config(image_urls=site.authority)) as run:
        with run.call({"messages": [user(image_part(f"{site.url}/slow"))]}, path=PATH):
            assert is_reached.wait(30)
            assert run.gauge("image_fetches") == 1
            assert run.client.get("/health").status_code == 200
        wait_until(lambda: run.gauge("image_fetches") == 0)
        end.set()
        with run.call({"messages": [user(image_part(f"{site.url}/picture"))]}, path=PATH) as call:
            message = run.take_request()
            assert (message.images[0].width, message.images[0].height) == (30, 20)
            run.send(final(message))
            assert call.json()["object"] == "chat.completion"
