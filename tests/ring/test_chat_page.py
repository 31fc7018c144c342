"""The chat at `/` in a real browser with a real server."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ring.accessibility import violations
from tests.ring.browser import require_browser
from tests.ring.client import RingClient
from tests.ring.conftest import Start
from tests.ring.devtools import BrowserPage

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

NUM_TOKENS = 24
RENDER = """import("/page/any/growing.js").then(({GrowingText}) => text => {
  const place = document.createElement("div");
  new GrowingText(place).write(text, true);
  return [...place.childNodes];
})"""
"""A promise of a function that returns the nodes of a text."""

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


TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_ring(start_ring: Start, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> RingClient:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    return start_ring(tiny_checkpoint, "--dtype", "float32", "--chat-template", str(template))


@pytest.fixture(scope="module")
def page(chat_ring: RingClient) -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        page.open(f"{chat_ring.url}/")
        page.wait_for(f"document.getElementById('status')?.textContent === 'ready' && {NAMED}")
        page.run(
            f"""(() => {{
            const {{elements}} = document.getElementById("settings-form");
            elements.max_tokens.value = {NUM_TOKENS};
            elements.temperature.value = 0;
            document.getElementById("settings-form").dispatchEvent(new Event("change"));
            }})()"""
        )
        yield page
        assert page.problems == []


def show(page: BrowserPage, text: str) -> None:
    page.run(f"document.getElementById('text').value = {text!r}; document.getElementById('composer').requestSubmit()")
    page.wait_for(IDLE)


def click(page: BrowserPage, label: str, place: int) -> None:
    """Presses an action of the message with this index."""
    page.run(f"document.querySelectorAll('#messages > li')[{place}].querySelector(`[aria-label={label!r}]`).click()")


def set_most_tokens(page: BrowserPage, number: int) -> None:
    page.run(f"document.getElementById('settings-form').elements.max_tokens.value = {number}")
    page.run("document.getElementById('settings-form').dispatchEvent(new Event('change'))")


def submit_edit(page: BrowserPage, text: str) -> None:
    page.run(f"document.querySelector('.editing textarea').value = {text!r}")
    page.run("document.querySelector('.editing').requestSubmit()")
    page.wait_for(f"{IDLE} && !document.querySelector('.editing')")


def expected(ring: RingClient, *texts: str) -> str:
    """Returns the answer to a conversation of the user and the model in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    body = {"messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0}
    reply = httpx.post(f"{ring.url}/v1/chat/completions", json=body, timeout=60)
    return reply.json()["choices"][0]["message"]["content"]


def contents(page: BrowserPage) -> list[str]:
    """Returns the messages of the latest conversation that the browser keeps, as they are shown after a reload."""
    return page.run(
        """import("/page/any/conversations.js").then(async ({branch, Conversations}) => {
        const kept = new Conversations();
        await kept.load();
        return branch(kept.all[0]).map(({content}) => content);
        })"""
    )


def shown(page: BrowserPage) -> list[str]:
    return page.run("[...document.querySelectorAll('#messages > li > .text')].map(text => text.textContent)")


def test_a_conversation_continues_and_is_kept(page: BrowserPage, chat_ring: RingClient):
    show(page, "hello")
    show(page, "and then")
    first = expected(chat_ring, "hello")
    assert contents(page) == ["hello", first, "and then", expected(chat_ring, "hello", first, "and then")]
    assert page.run(KINDS) == ["user", "assistant"] * 2
    page.open(f"{chat_ring.url}/")
    page.wait_for("document.querySelectorAll('#messages > li').length === 4")


def test_an_edited_message_begins_another_branch(page: BrowserPage, chat_ring: RingClient):
    page.wait_for(NAMED)
    before = contents(page)
    click(page, "Edit", 0)
    submit_edit(page, "bye")
    answer = expected(chat_ring, "bye")
    assert contents(page) == ["bye", answer]
    click(page, "Regenerate", 1)
    page.wait_for(IDLE)
    assert contents(page) == ["bye", answer]
    assert page.run("[...document.querySelectorAll('.versions')].map(({textContent}) => textContent)") == ["2/2", "2/2"]
    click(page, "Previous version", 0)
    page.wait_for("document.querySelectorAll('#messages > li').length === 4")
    assert contents(page) == before
    click(page, "Next version", 0)
    click(page, "Edit", 1)
    submit_edit(page, "my own words")
    assert contents(page) == ["bye", "my own words"]
    click(page, "Delete", 1)
    assert contents(page) == ["bye", answer]
    page.run("document.querySelector('#note button').click()")
    page.wait_for("document.querySelector('.assistant .versions').textContent === '3/3'")
    assert contents(page) == ["bye", "my own words"]
    click(page, "Delete", 1)


def test_an_answer_is_continued_where_it_ended(page: BrowserPage, chat_ring: RingClient):
    begun = contents(page)
    click(page, "Continue", 1)
    page.wait_for(IDLE)
    question, answer = contents(page)
    assert question == begun[0]
    assert answer.startswith(begun[1])
    body = {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": begun[1]}]}
    body |= {"max_tokens": NUM_TOKENS, "temperature": 0, "continue_final_message": True}
    reply = httpx.post(f"{chat_ring.url}/v1/chat/completions", json=body, timeout=60).json()
    assert answer == begun[1] + reply["choices"][0]["message"]["content"]


def test_an_answer_shows_how_it_was_made(page: BrowserPage):
    click(page, "Regenerate", 1)
    page.wait_for(IDLE)
    click(page, "How it was made", 1)
    page.wait_for("document.querySelector('#timeline table')")
    assert page.run("document.querySelectorAll('#output .token').length") == NUM_TOKENS
    assert f"{NUM_TOKENS} output tokens" in page.run("document.getElementById('details-summary').textContent")
    assert f"{NUM_TOKENS} tokens" in page.run("document.getElementById('messages').lastChild.textContent")
    page.run("document.querySelector('#details .close').click()")
    assert "tokens · " in page.run("document.getElementById('used').textContent")


def test_a_stopped_answer_stays_as_far_as_it_came(page: BrowserPage, chat_ring: RingClient):
    page.run("document.getElementById('new').click()")
    page.wait_for("!document.getElementById('welcome').hidden")
    set_most_tokens(page, 100)
    page.run(
        """document.getElementById('text').value = 'go'; document.getElementById('composer').requestSubmit();
        document.getElementById('stop').click()"""
    )
    page.wait_for(f"{IDLE} && document.querySelectorAll('#list li').length === 2")
    assert page.run("document.getElementById('note').textContent") == "stopped"
    page.run("document.querySelectorAll('#list .delete')[0].click()")
    assert page.run("document.querySelectorAll('#list li').length") == 1


def test_the_first_screen_names_the_model_and_its_suggestions_work(page: BrowserPage, chat_ring: RingClient):
    card = httpx.get(f"{chat_ring.url}/v1/models").json()["data"][0]
    page.run("document.getElementById('new').click()")
    page.wait_for("!document.getElementById('welcome').hidden")
    assert page.run("document.getElementById('welcome-model').textContent") == Path(card["id"]).name
    facts = page.run("document.getElementById('welcome-facts').innerText")
    assert f"{card['max_model_len']:,} tokens of context" in facts
    assert page.run("document.querySelectorAll('#suggestions button').length") == 3
    set_most_tokens(page, NUM_TOKENS)
    text = page.run("document.querySelector('#suggestions span').textContent")
    page.run("document.querySelector('#suggestions button').click()")
    page.wait_for(f"{IDLE} && document.querySelectorAll('#messages > li').length === 2")
    assert contents(page) == [text, expected(chat_ring, text)]
    page.run("document.querySelectorAll('#list .delete')[0].click()")


def test_a_model_without_a_chat_template_continues_the_text(
    page: BrowserPage, chat_ring: RingClient, plain_ring: RingClient
):
    page.open(f"{plain_ring.url}/")
    page.wait_for("document.querySelectorAll('#suggestions button').length === 3")
    assert "continues texts" in page.run("document.getElementById('welcome-facts').innerText")
    set_most_tokens(page, NUM_TOKENS)
    page.run("document.getElementById('settings-form').elements.temperature.value = 0")
    page.run("document.getElementById('settings-form').dispatchEvent(new Event('change'))")
    page.run("document.querySelector('#suggestions button').click()")
    page.wait_for(f"{IDLE} && document.querySelectorAll('#messages > li').length === 2")
    text, answer = contents(page)
    body = {"prompt": text, "max_tokens": NUM_TOKENS, "temperature": 0}
    reply = httpx.post(f"{plain_ring.url}/v1/completions", json=body, timeout=60).json()
    assert answer == reply["choices"][0]["text"]
    page.open(f"{chat_ring.url}/")
    page.wait_for(f"document.getElementById('status')?.textContent === 'ready' && {NAMED}")


def test_text_files_go_with_a_message_and_others_are_refused(page: BrowserPage, chat_ring: RingClient):
    page.run("document.getElementById('new').click()")
    page.run(
        """(() => {
        const data = new DataTransfer();
        data.items.add(new File(["one\\n```\\ntwo"], "notes.txt"));
        data.items.add(new File([new Uint8Array([137, 80, 78, 71, 0, 255])], "image.png"));
        document.getElementById("main").dispatchEvent(new DragEvent("drop", {dataTransfer: data, cancelable: true}));
        })()"""
    )
    page.wait_for("document.getElementById('note').textContent === 'image.png: not a text file'")
    assert page.run("[...document.querySelectorAll('#files li')].map(item => item.innerText.trim())") == ["notes.txt"]
    show(page, "what is it?")
    sent = "notes.txt:\n````\none\n```\ntwo\n````\n\nwhat is it?"
    assert contents(page) == ["what is it?", expected(chat_ring, sent)]
    assert page.run("document.querySelector('.user .file').textContent") == "notes.txtone\n```\ntwo"
    page.run("document.querySelectorAll('#list .delete')[0].click()")


def test_conversations_are_searched(page: BrowserPage):
    def search(text: str) -> list[str]:
        page.run(
            f"document.getElementById('search').value = {text!r};"
            "document.getElementById('search').dispatchEvent(new Event('input'))"
        )
        return page.run(
            """new Promise(done => setTimeout(done, 300)).then(() =>
            [...document.querySelectorAll('#list .open small')].map(({textContent}) => textContent))"""
        )

    show(page, "Where is the needle of hay?")
    page.run("document.getElementById('new').click()")
    assert search("NEEDLE") == ["Where is the needle of hay?"]
    page.run("document.querySelector('#list .open').click()")
    assert "needle" in shown(page)[-2]
    assert search("no such words") == []
    assert page.run("document.getElementById('list-note').textContent") == "Nothing found"
    search("")
    page.run("document.querySelectorAll('#list .delete')[0].click()")


def test_an_export_is_imported_as_it_was_and_a_bad_file_is_refused(page: BrowserPage):
    show(page, "to export")
    click(page, "Regenerate", 1)
    page.wait_for(IDLE)
    with_branches = page.run(
        """import("/page/any/conversations.js").then(async ({Conversations}) => {
        const kept = new Conversations();
        await kept.load();
        return import("/page/any/transfer.js").then(({asJson}) => asJson(kept.all));
        })"""
    )
    texts = [
        bad if isinstance(bad, str) else json.dumps({"format": "sluice-conversations", "conversations": [bad]})
        for bad, _ in BAD_IMPORTS
    ]
    again, refusals = page.run(
        f"""import("/page/any/transfer.js").then(async ({{asJson, readFile}}) => {{
        const read = await readFile(new File([{json.dumps(with_branches)}], "a.json")), wrong = [];
        for (const text of {json.dumps(texts)})
          wrong.push(await readFile(new File([text], "b.json")).then(() => "read", ({{message}}) => message));
        return [await asJson(read), wrong];
        }})"""
    )
    for refusal, (_, words) in zip(refusals, BAD_IMPORTS, strict=True):
        assert words in refusal
    before, after = (json.loads(text)["conversations"] for text in (with_branches, again))
    assert len(before) == len(after) >= 1
    for one, other in zip(before, after, strict=True):
        assert one["id"] != other["id"]
        assert one["title"] == other["title"]
        places = [{message["id"]: place for place, message in enumerate(each["messages"])} for each in (one, other)]
        trees = [
            [(m["role"], m["content"], place.get(m["parent"])) for m in each["messages"]]
            for each, place in zip((one, other), places, strict=True)
        ]
        assert trees[0] == trees[1]
        assert places[0][one["leaf"]] == places[1][other["leaf"]]


def test_keys_work_without_a_pointer(page: BrowserPage):
    page.run("document.getElementById('new').click()")
    show(page, "by hand")
    order: list[str] = []
    page.run("document.querySelector('#messages li').focus(); document.getElementById('text').focus()")
    for _ in range(12):
        page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9, modifiers=8)
        order.append(page.run("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))
    assert order[:4] == ["How it was made", "Delete", "Continue", "Regenerate"]
    assert page.run("getComputedStyle(document.querySelector('.user .message-actions')).opacity") is not None
    page.call("Input.dispatchKeyEvent", type="keyDown", key="O", code="KeyO", windowsVirtualKeyCode=79, modifiers=10)
    page.wait_for("!document.getElementById('welcome').hidden")


def test_an_error_of_the_server_is_shown(page: BrowserPage):
    set_most_tokens(page, 9_000_000_000)
    show(page, "again")
    assert "max_tokens must be" in page.run("document.querySelector('#messages .error:not(:empty)').textContent")
    page.problems.clear()  # the browser's own message about the 400


def test_markdown_becomes_elements_and_no_markup(page: BrowserPage):
    tags = page.run(
        f"""{RENDER}.then(render => {{
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


BAD_IMPORTS = [
    ("[", "no JSON"),
    ("[]", '"format" must be'),
    ({"title": 1}, "conversation 1: needs a title"),
    ({"title": "", "messages": [{"role": "root", "content": ""}]}, "conversation 1, message 1: needs a role"),
    ({"title": "", "messages": [{"parent": "x"}]}, "conversation 1, message 1: its parent must be before it"),
]

HOSTILE = {
    "spaces after a table's rule": "a | b\n|--|--|" + " " * 50_000 + "x",
    "quotes in quotes": ">" * 50_000,
    "items in items": "".join(f"{'  ' * depth}- x\n" for depth in range(300)),
    "open marks": "**a _b ~~c `d [e](" * 3_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "backquotes": " ".join("`" * count for count in range(1, 300)),
    "one long line": "https://a.b/" + "(" * 50_000,
    "formulas that do not end": "\\(" * 50_000,
    "dollars": "$a $" * 30_000,
    "a formula that grows": "$$" + r"\def\a{\a\a}\a" + "$$",
    "code of many words": "```csharp\n" + ("a" * 499 + "\n") * 20 + "```",
    "code of empty lines": "```haskell\n" + "\n" * 9_990 + "```",
    "code of names": "```cpp\n" + ("_" * 499 + "\n") * 20 + "```",
    "long code": "```cpp\n" + "a" * 90_000 + "\n```",
    "many formulas": r"$\frac{1}{2}$ " * 900,
}


PAYLOADS = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='hacked = 1'> <svg/onload=hacked=1> <iframe src='javascript:hacked=1'></iframe>",
    "[a](javascript:hacked=1) [b](JaVaScRiPt:hacked=1) [c](data:text/html,<script>hacked=1</script>)",
    "<javascript:hacked=1> <data:text/html,hacked> [x](//127.0.0.2:1)",
    "[a]: javascript:hacked=1\n\n[a] [b](java&#10;script:hacked=1) [c](vbscript:hacked=1)",
    "![a](http://127.0.0.2:1/a.png) ![b](data:image/svg+xml,<svg/onload=hacked=1>) ![c](//127.0.0.2:1/c.png)",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=hacked=1&gt;'>",
    "<style>@import 'http://127.0.0.2:1/a.css'</style><link rel=stylesheet href='http://127.0.0.2:1/b.css'>",
    "```html\n<img src=x onerror=hacked=1><script>hacked=1</script>\n```",
    '```"><img/src=x/onerror=hacked=1>\ncode\n```',
    '| <img src=x onerror=hacked=1> |\n|:-:|\n| [x](https://a.b/"onmouseover="hacked=1) |',
    '<https://a.b/"onclick=hacked=1> [x](https://a.b "title\\" onclick=hacked=1")',
    r"$\href{javascript:hacked=1}{x}$ $\url{javascript:hacked=1}$ $\includegraphics{http://127.0.0.2:1/a.png}$",
    r"$\htmlStyle{background:url(http://127.0.0.2:1/a)}{x}$ $\htmlId{messages}{x}$ $\htmlData{a=b}{x}$",
    r"$$<img src=x onerror=hacked=1>$$ \(<script>hacked=1</script>\) $\text{<img src=x onerror=hacked=1>}$",
    "<form action='http://127.0.0.2:1'><input name=attributes><button>x</button></form><base href='http://127.0.0.2:1'>",
]


def test_no_text_of_a_model_runs_or_loads_anything(page: BrowserPage):
    found = page.run(
        f"""{RENDER}.then(async render => {{
        const place = document.createElement("div"), faults = [];
        document.body.append(place);
        for (const text of {json.dumps(PAYLOADS)}) place.append(...render(text));
        await new Promise(done => setTimeout(done, 1500));
        for (const element of place.querySelectorAll("*")) {{
          const isFaulty = element.matches("script, img, iframe, object, embed, style, link, form, input, base, use");
          const isBad = ({{name, value}}) =>
            /^on|^src|^id$|^data-/.test(name) || (/href$/.test(name) && !/^https?:[/][/]/.test(value));
          if (isFaulty || [...element.attributes].some(isBad)) faults.push(element.outerHTML);
        }}
        const loaded = performance.getEntriesByType("resource").map(({{name}}) => new URL(name).host);
        const numFormulas = place.querySelectorAll(".katex").length;
        place.remove();
        return [typeof window.hacked, faults, [...new Set(loaded)].length, numFormulas > 2];
        }})"""
    )
    assert found == ["undefined", [], 1, True]


LONG = "".join(
    f"## Part {part}\n\nSome **bold** words, a formula $x_{{{part}}}$ and `code`:\n\n```python\nprint({part})\n```\n\n"
    f"1. one\n2. two\n\n| a | b |\n|---|---|\n| {part} | 2 |\n\n"
    for part in range(100)
)


def test_a_long_answer_is_drawn_block_by_block(page: BrowserPage):
    """Complete blocks stay, so that a piece costs as much at the end as at the beginning."""
    same, is_kept, early, late = page.run(
        f"""import("/page/any/growing.js").then(async ({{GrowingText}}) => {{
        const place = document.createElement("div"), whole = document.createElement("div");
        const growing = new GrowingText(place), text = {json.dumps(LONG)}, added = [];
        let first = null;
        for (let end = 0; end < text.length; end += 40) {{
          const before = new Set(place.querySelectorAll("*"));
          growing.write(text.slice(0, end));
          first ??= place.children[1] && place.firstChild;
          added.push([...place.querySelectorAll("*")].filter(element => !before.has(element)).length);
        }}
        growing.write(text, true);
        new GrowingText(whole).write(text, true);
        await new Promise(done => setTimeout(done, 500));
        const half = added.length / 2, most = numbers => Math.max(...numbers);
        const textOf = element => element.innerText.trim();
        const halves = [most(added.slice(0, half)), most(added.slice(half))];
        return [textOf(place) === textOf(whole), place.firstChild === first, ...halves];
        }})"""
    )
    assert same
    assert is_kept
    assert late <= early * 1.5


def test_no_answer_freezes_the_page(page: BrowserPage):
    for name, text in HOSTILE.items():
        took_ms, shown = page.run(
            f"""{RENDER}.then(render => {{
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
            f"""{RENDER}.then(render =>
            render({json.dumps(text)}).map(({{tagName, textContent}}) => [tagName, textContent.length]))"""
        )
        assert kinds == [["PRE", len(text)]]


def test_links_lead_to_the_web_alone_and_pictures_are_not_loaded(page: BrowserPage):
    text = (
        "[a](javascript:alert(1)) [b](/admin/x) [c](data:text/html,x) ![d](https://example.org/d) https://example.org/e"
    )
    found = page.run(
        f"""{RENDER}.then(render => {{
        const place = document.createElement("div");
        place.append(...render({json.dumps(text)}));
        return [[...place.querySelectorAll("a[href]")].map(({{href}}) => href), place.querySelectorAll("img").length];
        }})"""
    )
    assert found == [["https://example.org/d", "https://example.org/e"], 0]


RICH = [
    {"id": 1, "parent": None, "role": "user", "content": "Show it.", "files": [{"name": "notes.txt", "text": "a\nb"}]},
    {"id": 2, "parent": 1, "role": "assistant", "content": "An earlier version."},
    {
        "id": 3,
        "parent": 1,
        "role": "assistant",
        "content": MARKDOWN + "```\n\n$x^2$ and\n\n$$\\frac{1}{2}$$\n",
        "reasoning": "I **think**.",
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
        "reason": "stop",
        "error": "the server cannot be reached",
    },
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_it_is_accessible_and_fits(page: BrowserPage, scheme: str, width: int):
    assert violations(page, scheme, width) == []
    file = json.dumps(
        {"format": "sluice-conversations", "conversations": [{"title": "rich " * 20, "messages": RICH, "leaf": 3}]}
    )
    page.run("document.getElementById('new').click()")
    page.wait_for("!document.getElementById('welcome').hidden")
    assert violations(page, scheme, width) == [], "the first screen"
    page.run(
        f"""(() => {{
        const data = new DataTransfer(), input = document.getElementById("import-file");
        data.items.add(new File([{file!r}], "a.json"));
        input.files = data.files;
        input.dispatchEvent(new Event("change"));
        }})()"""
    )
    page.wait_for("document.querySelectorAll('#messages .katex').length === 2")
    page.run("document.querySelectorAll('#messages details').forEach(part => { part.open = true; })")
    assert violations(page, scheme, width) == []
    click(page, "How it was made", 1)
    click(page, "Edit", 0)
    page.wait_for("document.querySelector('#timeline').childElementCount")
    assert violations(page, scheme, width) == []
    page.problems[:] = [problem for problem in page.problems if "404" not in problem]  # the request is not the server's
    page.run("document.querySelector('#details .close').click()")
    page.run("document.querySelector('#list [aria-current] + .delete').click()")
