"""The chat at `/` in a real browser with a real server."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ring.browser import require_browser
from tests.ring.client import RingClient
from tests.ring.devtools import BrowserPage

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

NUM_TOKENS = 24
IDLE = "!document.getElementById('send').disabled"
NAMED = "document.getElementById('model-name').textContent"
KINDS = "[...document.querySelectorAll('#messages > li')].map(item => item.className)"
MARKDOWN = """# Title
Some **bold**, *slanted* and `code` in a [link](https://example.org/a) and <b>no markup</b>.

- one
  - inner
- two

3. three

| a | b |
|---|---|
| 1 | 2 |

> quoted

```python
print("<i>")
"""


@pytest.fixture(scope="module")
def page(plain_ring: RingClient) -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        page.open(f"{plain_ring.url}/")
        page.wait_for(f"document.getElementById('status')?.textContent === 'ready' && {NAMED}")
        page.run(
            f"""(() => {{
            const {{elements}} = document.getElementById("composer");
            elements.max_tokens.value = {NUM_TOKENS};
            elements.temperature.value = 0;
            document.getElementById("settings").dispatchEvent(new Event("change"));
            }})()"""
        )
        yield page
        assert page.problems == []


def show(page: BrowserPage, text: str) -> None:
    page.run(f"document.getElementById('text').value = {text!r}; document.getElementById('composer').requestSubmit()")
    page.wait_for(IDLE)


def click(page: BrowserPage, label: str, place: int) -> None:
    """Presses an action of the message with this index."""
    item = f"document.querySelectorAll('#messages > li')[{place}]"
    page.run(f"[...{item}.querySelectorAll('button')].find(button => button.textContent === {label!r}).click()")


def expected(ring: RingClient, *texts: str) -> str:
    """Returns the answer to a conversation of the user and the model in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0}
    reply = httpx.post(f"{ring.url}/v1/chat/completions", json=body, timeout=60)
    return reply.json()["choices"][0]["message"]["content"]


def contents(page: BrowserPage) -> list[str]:
    """Returns the messages as the browser keeps them, the open conversation first."""
    stored = json.loads(page.run("localStorage.getItem('sluice-conversations')"))
    return [message["content"] for message in stored[0]["messages"]]


def test_a_conversation_continues_and_is_kept(page: BrowserPage, plain_ring: RingClient):
    show(page, "hello")
    show(page, "and then")
    first = expected(plain_ring, "hello")
    assert contents(page) == ["hello", first, "and then", expected(plain_ring, "hello", first, "and then")]
    assert page.run(KINDS) == ["user", "assistant"] * 2
    page.open(f"{plain_ring.url}/")
    page.wait_for("document.querySelectorAll('#messages > li').length === 4")


def test_an_edited_message_begins_another_continuation(page: BrowserPage, plain_ring: RingClient):
    page.wait_for(NAMED)
    click(page, "Edit", 0)
    page.run(
        "document.querySelector('.editing textarea').value = 'bye'; document.querySelector('.editing').requestSubmit()"
    )
    page.wait_for(IDLE)
    assert contents(page) == ["bye", expected(plain_ring, "bye")]
    click(page, "Regenerate", 1)
    page.wait_for(IDLE)
    assert contents(page) == ["bye", expected(plain_ring, "bye")]


def test_an_answer_shows_how_it_was_made(page: BrowserPage):
    click(page, "How it was made", 1)
    page.wait_for("document.querySelector('#timeline table')")
    assert page.run("document.querySelectorAll('#output .token').length") == NUM_TOKENS
    assert f"{NUM_TOKENS} output tokens" in page.run("document.getElementById('messages').lastChild.textContent")
    page.run("document.getElementById('details-close').click()")


def test_a_stopped_answer_stays_as_far_as_it_came(page: BrowserPage, plain_ring: RingClient):
    page.run("document.getElementById('new').click()")
    page.run("document.getElementById('composer').elements.max_tokens.value = 100")
    page.run("document.getElementById('settings').dispatchEvent(new Event('change'))")
    page.run(
        """document.getElementById('text').value = 'go'; document.getElementById('composer').requestSubmit();
        document.getElementById('stop').click()"""
    )
    page.wait_for(IDLE)
    assert page.run("document.getElementById('note').textContent") == "stopped"
    assert page.run("document.querySelectorAll('#list li').length") == 2
    page.run("document.querySelectorAll('#list .delete')[0].click()")
    assert page.run("document.querySelectorAll('#list li').length") == 1


def test_an_error_of_the_server_is_shown(page: BrowserPage):
    page.run("document.getElementById('composer').elements.max_tokens.value = 10 ** 9 * 9")
    page.run("document.getElementById('settings').dispatchEvent(new Event('change'))")
    show(page, "again")
    assert "max_tokens must be" in page.run("document.querySelector('#messages .error').textContent")
    page.problems.clear()  # the browser's own message about the 400


def test_markdown_becomes_elements_and_no_markup(page: BrowserPage):
    tags = page.run(
        f"""import("/page/markdown.js").then(({{render}}) => {{
        const place = document.createElement("div");
        place.append(...render({json.dumps(MARKDOWN)}));
        return [[...place.querySelectorAll("*")].map(element => element.tagName.toLowerCase()), place.textContent,
          place.querySelector("a").href, place.querySelector("ol").start];
        }})"""
    )
    names, text, address, start = tags
    assert {"h3", "strong", "em", "code", "a", "ul", "ol", "table", "blockquote", "pre"} <= set(names)
    assert not {"b", "i"} & set(names)
    assert (names.count("ul"), names.count("li")) == (2, 4)
    assert "<b>no markup</b>" in text
    assert "Some bold" in text
    assert 'print("<i>")' in text
    assert (address, start) == ("https://example.org/a", 3)


HOSTILE = {
    "spaces after a table's rule": "a | b\n|--|--|" + " " * 50_000 + "x",
    "quotes in quotes": ">" * 50_000,
    "items in items": "".join(f"{'  ' * depth}- x\n" for depth in range(300)),
    "open marks": "**a _b ~~c `d [e](" * 3_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "backquotes": " ".join("`" * count for count in range(1, 300)),
    "one long line": "https://a.b/" + "(" * 50_000,
}


def test_no_answer_freezes_the_page(page: BrowserPage):
    for name, text in HOSTILE.items():
        took_ms, shown = page.run(
            f"""import("/page/markdown.js").then(({{render}}) => {{
            const begun = performance.now(), place = document.createElement("div");
            place.append(...render({json.dumps(text)}));
            return [performance.now() - begun, place.textContent.length];
            }})"""
        )
        assert took_ms < 5_000, name
        assert shown > 0, name


def test_a_text_that_is_nested_too_deeply_or_too_long_is_shown_as_it_is(page: BrowserPage):
    for text in (">" * 5_000 + " deep", "word " * 50_000):
        kinds = page.run(
            f"""import("/page/markdown.js").then(({{render}}) =>
            render({json.dumps(text)}).map(({{tagName, textContent}}) => [tagName, textContent.length]))"""
        )
        assert kinds == [["PRE", len(text)]]


def test_links_lead_to_the_web_alone_and_pictures_are_not_loaded(page: BrowserPage):
    text = (
        "[a](javascript:alert(1)) [b](/admin/x) [c](data:text/html,x) ![d](https://example.org/d) https://example.org/e"
    )
    found = page.run(
        f"""import("/page/markdown.js").then(({{render}}) => {{
        const place = document.createElement("div");
        place.append(...render({json.dumps(text)}));
        return [[...place.querySelectorAll("a")].map(({{href}}) => href), place.querySelectorAll("img").length];
        }})"""
    )
    assert found == [["https://example.org/d", "https://example.org/e"], 0]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_is_accessible_and_fits(page: BrowserPage, scheme: str, width: int):
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs the package axe-core-python, for the axe.min.js in it")
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.run(f"{Path(found.origin).with_name('axe.min.js').read_text(encoding='utf-8')}\n0")
    violations = page.run(
        """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
        .map(({id, nodes}) => [id, nodes.map(({target, failureSummary}) => [target, failureSummary])]))"""
    )
    assert violations == []
    assert page.run("document.documentElement.scrollWidth") <= width
