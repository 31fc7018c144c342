"""Images in the chat at `/`, in a real browser with a real frontend whose ring the test plays."""

import base64
import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from messages.ring.replies import PromptReply
from tests.frontend.frontend_run import FrontendRun, final, step
from tests.frontend.images.test_chat_images import picture, vision_config
from tests.ring.accessibility import violations
from tests.ring.browser import require_browser
from tests.ring.devtools import BrowserPage

pytestmark = [pytest.mark.ring, pytest.mark.timeout(300)]

MAX_IMAGE_MB = 0.25
NOTE = "document.getElementById('note').textContent"
ATTACHED = "[...document.querySelectorAll('#files li')].map(item => item.textContent)"
PICTURES = "[...document.querySelectorAll('#messages img')].map(({alt, naturalWidth}) => [alt, naturalWidth])"


def png(width: int, height: int, colour: str) -> str:
    return base64.b64encode(picture(width, height, colour)).decode()


@pytest.fixture(scope="module")
def server() -> Iterator[FrontendRun]:
    config = vision_config(max_images=3, max_image_mb=MAX_IMAGE_MB)
    with FrontendRun(replace(config, facts=replace(config.facts, has_chat_template=True))) as run:
        yield run


@pytest.fixture(scope="module")
def page(server: FrontendRun) -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        page.open(f"{server.url}/")
        page.wait_for("document.getElementById('attach')?.title === 'Attach images and text files'")
        yield page
        assert page.problems == []


def attach(page: BrowserPage, event: str, *files: tuple[str, str, str]) -> None:
    """Attaches files (name, type, content in base 64) as people do: by `pick`, `paste` or `drop`."""
    page.run(
        f"""(() => {{
        const data = new DataTransfer(), input = document.getElementById("file");
        for (const [name, type, content] of {json.dumps(files)}) {{
          data.items.add(new File([Uint8Array.from(atob(content), byte => byte.charCodeAt(0))], name, {{type}}));
        }}
        const options = {{bubbles: true, cancelable: true}};
        if ({event!r} === "paste") {{
          const pasted = new ClipboardEvent("paste", {{clipboardData: data, ...options}});
          document.getElementById("text").dispatchEvent(pasted);
        }} else if ({event!r} === "drop") {{
          document.getElementById("main").dispatchEvent(new DragEvent("drop", {{dataTransfer: data, ...options}}));
        }} else {{
          input.files = data.files;
          input.dispatchEvent(new Event("change"));
        }}
        }})()"""
    )


RED, WIDE = ("red.png", "image/png", png(8, 8, "red")), ("wide.png", "image/png", png(40, 10, "blue"))


def test_images_are_picked_pasted_dropped_and_removed(page: BrowserPage):
    for event, file in (("pick", RED), ("paste", WIDE), ("drop", ("notes.txt", "text/plain", "aGk="))):
        attach(page, event, file)
        page.wait_for(f"{ATTACHED}.includes({file[0]!r})")
    assert page.run("document.querySelectorAll('#files img').length") == 2
    page.wait_for("[...document.querySelectorAll('#files img')].every(({naturalWidth}) => naturalWidth > 0)")
    for width in (1440, 390):
        assert violations(page, "light", width) == []
    for name in ("red.png", "notes.txt"):
        page.run(f"document.querySelector(`#files [aria-label='Remove {name}']`).click()")
    assert page.run(ATTACHED) == ["wide.png"]


REFUSED = [
    (("big.jpg", "image/jpeg", "A" * 400_000), "big.jpg: larger than 0.25 MB, the server's limit"),
    (("a.heic", "image/heic", "AAAA"), "a.heic: images are PNG, JPEG, WebP, GIF, BMP or TIFF files"),
]


@pytest.mark.parametrize(("file", "words"), REFUSED)
def test_what_the_server_would_refuse_is_refused_with_a_reason(
    page: BrowserPage, file: tuple[str, str, str], words: str
):
    attach(page, "pick", file)
    page.wait_for(f"{NOTE} === {words!r}")
    assert page.run(ATTACHED) == ["wide.png"]


def test_no_more_images_are_attached_than_a_request_may_have(page: BrowserPage):
    attach(page, "pick", RED, RED, RED)
    page.wait_for(f"{NOTE} === 'red.png: only 3 images go with a message'")
    page.run("document.querySelector(`#files [aria-label='Remove red.png']`).click()")
    page.run("document.querySelector(`#files [aria-label='Remove red.png']`).click()")


def ask(page: BrowserPage, server: FrontendRun, text: str) -> list[object]:
    """Sends a message and answers it. Returns the content of the first message for the tokenizer, and the images."""
    page.run(f"document.getElementById('text').value = {text!r}; document.getElementById('composer').requestSubmit()")
    message = server.take_request()
    server.send(PromptReply(message.uid, 0, ""))
    server.send(step([(message, 5, "A line.")]))
    server.send(final(message))
    page.wait_for("!document.getElementById('send').disabled")
    assert message.chat is not None
    sizes = [(image.width, image.height) for image in message.images]
    return [json.loads(message.chat.messages)[0]["content"], sizes]


def test_an_image_is_sent_with_each_turn_and_kept(page: BrowserPage, server: FrontendRun):
    content = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    assert ask(page, server, "What is it?") == [content, [(40, 10)]]
    assert ask(page, server, "And its colour?") == [content, [(40, 10)]]
    page.open(f"{server.url}/")
    page.wait_for(f"JSON.stringify({PICTURES}) === '[[\"wide.png\",40]]'")
    assert ask(page, server, "Again?") == [content, [(40, 10)]]
    for width in (1440, 390):
        assert violations(page, "dark", width) == []


def test_an_export_has_the_image_and_an_import_shows_it(page: BrowserPage):
    exported, markdown = page.run(
        """Promise.all([import("/page/any/transfer.js"), import("/page/any/conversations.js")])
        .then(async ([{asJson, asMarkdown}, {Conversations}]) => {
          const kept = new Conversations();
          await kept.load();
          return [await asJson(kept.all), await asMarkdown(kept.all[0])];
        })"""
    )
    url = f"data:image/png;base64,{WIDE[2]}"
    assert json.loads(exported)["conversations"][0]["messages"][0]["files"] == [{"name": "wide.png", "image": url}]
    assert f"![wide.png]({url})" in markdown
    page.run("document.getElementById('new').click()")
    page.wait_for("!document.getElementById('welcome').hidden")
    import_file(page, exported)
    page.wait_for(f"JSON.stringify({PICTURES}) === '[[\"wide.png\",40]]'")
    import_file(page, exported.replace(url, "data:text/html;base64,AAAA"))
    page.wait_for(f"{NOTE}.includes('message 1: a file needs a name, and a text or an image')")


def import_file(page: BrowserPage, content: str) -> None:
    page.run(
        f"""(() => {{
        const data = new DataTransfer(), input = document.getElementById("import-file");
        data.items.add(new File([{json.dumps(content)}], "a.json"));
        input.files = data.files;
        input.dispatchEvent(new Event("change"));
        }})()"""
    )
