"""The pages of a server of models in a real browser: the menu, loads, tools by hand, and a pipeline for each model."""

from collections.abc import Iterator

import pytest

from tests.ring.accessibility import violations
from tests.ring.browser import require_browser
from tests.ring.devtools import BrowserPage
from tests.ring.models_server import CALL, ModelsServer

pytestmark = pytest.mark.timeout(300)

IDLE = "!document.getElementById('send').disabled"
LAST = "document.querySelector('#messages > li:last-child')"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelsServer]:
    with ModelsServer() as server:
        yield server


@pytest.fixture(scope="module")
def page(models: ModelsServer) -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        page.open(models.url)
        page.wait_for("document.getElementById('model-name')?.textContent === 'small'")
        yield page
        assert page.problems == []


def show(page: BrowserPage, text: str) -> None:
    page.run(f"document.getElementById('text').value = {text!r}; document.getElementById('composer').requestSubmit()")


def row(name: str) -> str:
    return f"[...document.querySelectorAll('#model-list li')].find(item => item.innerText.trim().startsWith({name!r}))"


def state(name: str) -> str:
    return f"{row(name)}.querySelector('.state').textContent"


def press(page: BrowserPage, key: str, code: int) -> None:
    text = {"Enter": "\r"}.get(key, "")
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)


def test_an_answer_waits_for_its_model_and_shows_the_progress(page: BrowserPage, models: ModelsServer):
    show(page, "hello")
    page.wait_for(f"{LAST}.querySelector('.wait')?.textContent === 'loading weights 43 % …'")
    models.set("small", "loaded")
    page.wait_for(IDLE)
    parts = page.run(
        f"[...{LAST}.children].map(part => [part.className, part.innerText.trim().replace(/[0-9.]+ m?s$/, 'N s')])"
    )
    assert [part for part in parts[:-1] if part[1]] == [
        ["who", "small"],
        ["thought", "Reasoned for N s"],
        ["text", "I am small."],
    ]


def test_a_model_is_chosen_by_keyboard_for_one_conversation(page: BrowserPage, models: ModelsServer):
    page.run("document.getElementById('model').focus()")
    press(page, "Enter", 13)
    page.wait_for("document.activeElement.value === 'small'")
    press(page, "ArrowDown", 40)
    assert page.run("document.getElementById('model-name').textContent") == "large"
    press(page, "ArrowDown", 40)
    assert page.run("document.getElementById('model-name').textContent") == "small", "vectors cannot be chosen"
    assert "only computes embeddings" in page.run(f"{row('vectors')}.innerText")
    press(page, "ArrowDown", 40)
    press(page, "Escape", 27)
    assert page.run("[document.activeElement.id, document.querySelector(':popover-open')]") == ["model", None]
    models.set("large", "loaded")
    show(page, "and you?")
    page.wait_for(f"{IDLE} && {LAST}.innerText.includes('I am large.')")
    assert [request["model"] for request in models.requests] == ["small", "large"]
    page.open(models.url)
    page.wait_for("document.getElementById('model-name')?.textContent === 'large'")


def test_a_model_is_loaded_and_unloaded_in_the_menu(page: BrowserPage, models: ModelsServer):
    page.run("document.getElementById('models').showPopover()")
    assert page.run(f"{row('large')}.querySelector('p').textContent") == "loaded · 3.7 GB"
    page.run(f"{row('large')}.querySelector('button').click()")
    page.wait_for(f"{state('large')} === 'unloaded'")
    page.run(f"{row('large')}.querySelector('button').click()")
    page.wait_for(f"{state('large')} === 'loading'")
    models.set("large", "unloaded", failed=True, error="not enough memory")
    page.wait_for(f"{state('large')} === 'failed'")
    assert "not enough memory" in page.run(f"{row('large')}.innerText")
    models.set("large", "loaded")
    page.wait_for(f"{state('large')} === 'loaded'")
    page.run("document.getElementById('models').hidePopover()")


def test_a_server_without_room_is_asked_again(page: BrowserPage, models: ModelsServer):
    models.is_full = True
    show(page, "again")
    page.wait_for(f"{LAST}.querySelector('.error').textContent === 'large still loads (try again in 7 s)'")
    page.problems.clear()  # the browser's own message about the 503
    models.is_full = False
    page.run(f"{LAST}.querySelector('[aria-label=\"Try again\"]').click()")
    page.wait_for(f"{IDLE} && {LAST}.innerText.includes('I am large.')")


def test_the_place_in_the_queue_is_shown_until_the_answer_begins(page: BrowserPage, models: ModelsServer):
    models.place = {"position": 3, "tokens_ahead": 1200, "expected_s": 4.2}
    show(page, "in a queue")
    page.wait_for(f"{LAST}.querySelector('.wait').textContent")
    shown = page.run(f"{LAST}.querySelector('.wait').textContent")
    assert shown == "place 3 in the queue, 1,200 tokens before it, about 4.2 s …"
    models.leave_queue()
    page.wait_for(f"{IDLE} && {LAST}.innerText.includes('I am large.')")
    assert page.run(f"{LAST}.querySelector('.wait').textContent") == ""
    assert models.requests[-1]["stream_options"]["include_progress"] is True
    models.place = {"position": 1, "tokens_ahead": None, "expected_s": None}
    show(page, "again in a queue")
    page.wait_for(f"{LAST}.querySelector('.wait').textContent === 'place 1 in the queue …'")
    models.leave_queue()
    page.wait_for(IDLE)


def test_tools_are_played_by_hand(page: BrowserPage, models: ModelsServer):
    page.run("document.getElementById('new').click(); document.getElementById('settings-open').click()")
    for text, wrong in (
        ("[", "not JSON"),
        ("{}", "must be a JSON array"),
        ('[{"type": "function", "function": {}}]', 'tool 1: "function" needs a "name"'),
    ):
        page.run(
            f"""(() => {{const field = document.getElementById("tools-text");
            field.value = {text!r}; field.dispatchEvent(new Event("input", {{bubbles: true}}))}})()"""
        )
        assert wrong in page.run("document.getElementById('tools-note').textContent")
    page.run("document.getElementById('tools-example').click()")
    show(page, "weather?")
    page.wait_for(f"{IDLE} && {LAST}.querySelector('.results')")
    assert page.run(f"{LAST}.querySelector('pre').textContent") == '{\n  "city": "Oslo"\n}'
    page.run(f"{LAST}.querySelector('textarea').value = '3 °C'; {LAST}.querySelector('form').requestSubmit()")
    page.wait_for(f"{IDLE} && {LAST}.innerText.includes('I am large.')")
    request = models.requests[-1]
    assert request["tools"][0]["function"]["name"] == "get_weather"
    assert request["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3 °C", "tool_call_id": CALL["id"]},
    ]
    kinds = page.run("[...document.querySelectorAll('#messages .who')].map(item => item.textContent)")
    assert kinds == ["You", "large", "Result of get_weather", "large"]
    show(page, "and tomorrow?")  # for the next test, which looks at the form
    page.wait_for(f"{IDLE} && {LAST}.querySelector('.results')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_menu_and_tools_are_accessible_and_fit(page: BrowserPage, scheme: str, width: int):
    page.run("document.getElementById('models').showPopover()")
    assert violations(page, scheme, width) == []
    page.run("document.getElementById('models').hidePopover()")
    if page.run("document.getElementById('settings').hidden"):
        page.run("document.getElementById('settings-open').click()")
    assert violations(page, scheme, width) == []
    page.run("document.querySelector('#settings .close').click()")
    if width < 500:
        page.run("document.getElementById('menu').click()")
        assert violations(page, scheme, width) == []
        page.run("document.getElementById('menu').click()")


def test_a_pipeline_is_shown_for_one_model_and_loads_it_only_when_asked(page: BrowserPage, models: ModelsServer):
    models.set("small", "unloaded")
    page.open(f"{models.url}/pipeline?model=small")
    page.wait_for("document.getElementById('unloaded-title')?.textContent === 'small is not loaded'")
    assert not models.streams
    page.run("document.getElementById('load').click()")
    page.wait_for("document.getElementById('unloaded-title').textContent === 'small is being loaded'")
    models.set("small", "loading", progress={"phase": "loading weights", "fraction": 0.5})
    page.wait_for("document.getElementById('unloaded-text').textContent === 'loading weights 50 %'")
    assert violations(page, "light", 390) == []
    models.set("small", "loaded")
    page.wait_for("document.getElementById('unloaded').hidden")
    page.wait_for("document.getElementById('main').dataset.stale === 'true'")  # the stream of this server is empty
    assert models.streams[0] == page.run("document.getElementById('models').value") == "small"
    models.set("small", "unloaded")
    page.wait_for("!document.getElementById('unloaded').hidden && document.getElementById('main').hidden")
