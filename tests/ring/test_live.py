"""The live page in a real browser with a real server, and `launch.py top`."""

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.ring.browser import require_browser
from tests.ring.client import ADMIN_KEY, RingClient
from tests.ring.devtools import BrowserPage

pytestmark = [pytest.mark.ring, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "the quick brown fox jumps over the lazy dog and runs away from the old barn"
NUM_TOKENS = 60
MAX_TRIES = 5
READY = "['ready', 'busy'].includes(document.querySelectorAll('.node')[1].dataset.state)"


@pytest.fixture(scope="module")
def page() -> Iterator[BrowserPage]:
    with BrowserPage(require_browser()) as page:
        yield page
        assert page.problems == []


@pytest.fixture(scope="module")
def shown(page: BrowserPage, faulty_ring: RingClient) -> BrowserPage:
    """The page of a server whose processes may be killed."""
    page.open(f"{faulty_ring.url}/pipeline")
    page.wait_for("document.getElementById('status')?.textContent === 'ready'")
    return page


def run_prompt(page: BrowserPage, prompt: str = PROMPT) -> None:
    """Runs a prompt greedily in the playground, and waits for its end and its waterfall."""
    page.run(
        f"""(() => {{
        const form = document.getElementById("play"), output = document.getElementById("output");
        Object.assign(form.elements.max_tokens, {{value: {NUM_TOKENS}}});
        Object.assign(form.elements.temperature, {{value: 0}});
        document.getElementById("prompt").value = {prompt!r};
        window.sizes = [];
        new MutationObserver(() => sizes.push(output.childElementCount)).observe(output, {{childList: true}});
        form.requestSubmit();
        }})()"""
    )
    page.wait_for("document.querySelector('#play-waterfall table') && !document.getElementById('run').disabled")


def test_it_shows_four_live_processes(shown: BrowserPage):
    shown.wait_for("[...document.querySelectorAll('#processes tbody tr')].every(row => row.cells[2].innerText !== '–')")
    names = shown.run("[...document.querySelectorAll('#processes tbody th')].map(cell => cell.textContent)")
    assert names == ["frontend", "tokenizer", "scheduler", "detokenizer"]
    states = shown.run("[...document.querySelectorAll('.node')].map(node => node.dataset.state)")
    assert set(states) <= {"ready", "busy"}
    assert len(states) == 4
    assert shown.run("document.getElementById('model').textContent")
    assert "pages in use" in shown.run("document.getElementById('pages-text').textContent")


def test_a_prompt_is_answered_token_by_token(shown: BrowserPage, faulty_ring: RingClient):
    for _ in range(MAX_TRIES):  # a slow browser may read all at once
        run_prompt(shown)
        if len({*shown.run("sizes")}) > 2:
            break
    else:
        raise AssertionError("all came at once")
    expected = faulty_ring.generate(PROMPT, max_tokens=NUM_TOKENS)
    assert shown.run("document.getElementById('output').textContent") == expected.text
    assert shown.run("document.querySelectorAll('#output .token').length") == expected.usage["completion_tokens"]


def test_a_token_is_chosen_by_keyboard_and_has_its_alternatives(shown: BrowserPage):
    shown.run("document.getElementById('output').focus()")
    for _ in range(2):
        shown.call(
            "Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight", windowsVirtualKeyCode=39
        )
    assert shown.run("[...document.getElementById('output').children].findIndex(one => one.matches('.chosen'))") == 1
    rows = shown.run("[...document.querySelectorAll('#alternatives tr')].map(row => row.cells[1].innerText)")
    assert len(rows) in (5, 6)
    assert rows == sorted(rows, key=lambda text: -float(text.rstrip(" %")))


def test_tokens_from_the_prefix_cache_are_marked(shown: BrowserPage, faulty_ring: RingClient):
    run_prompt(shown)
    usage = faulty_ring.generate(PROMPT, max_tokens=1).usage
    assert usage["cached_tokens"] > 0
    shown.wait_for(f"document.querySelectorAll('#prompt-tokens .hit').length === {usage['cached_tokens']}")
    assert shown.run("document.querySelectorAll('#prompt-tokens .token').length") == usage["prompt_tokens"]


def test_the_bars_of_a_waterfall_sum_to_the_whole(shown: BrowserPage):
    shown.wait_for("document.querySelector('#requests tr.ended button')")
    shown.run("document.querySelector('#requests tr.ended button').click()")
    shown.wait_for("document.querySelector('#waterfall table')")
    for place in ("play-waterfall", "waterfall"):
        total = shown.run(f"Number(document.querySelector('#{place} table').dataset.totalMs)")
        spans = shown.run(f"[...document.querySelectorAll('#{place} tbody tr')].map(row => Number(row.dataset.ms))")
        assert total > 0
        assert abs(sum(spans) - total) < 1
        widths = shown.run(f"""[...document.querySelectorAll("#{place} svg rect[class^='stage-']")].map(bar =>
            [bar.x.baseVal.value, bar.width.baseVal.value])""")
        assert len(widths) == len(spans)
        assert max(x + width for x, width in widths) == pytest.approx(1000, abs=3)


def test_a_prompt_is_sent_as_a_message_of_a_chat(shown: BrowserPage, faulty_ring: RingClient):
    shown.run("document.querySelector('[value=chat]').click()")
    run_prompt(shown, "hello")
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": NUM_TOKENS, "temperature": 0}
    reply = httpx.post(f"{faulty_ring.url}/v1/chat/completions", json=body, timeout=60).json()
    output = shown.run("document.getElementById('output').textContent")  # with the token that ends it
    assert output.startswith(reply["choices"][0]["message"]["content"])
    record = shown.run("document.getElementById('play-note').textContent")
    assert record.startswith(f"{reply['usage']['prompt_tokens']} prompt tokens ")
    shown.run("document.querySelector('[value=prompt]').click()")


def test_a_tokenizer_that_dies_turns_red_and_then_green(shown: BrowserPage, faulty_ring: RingClient):
    shown.run(
        """(() => {
        const node = document.querySelectorAll(".node")[1];
        window.states = [];
        new MutationObserver(() => states.push(node.dataset.state)).observe(node, {attributes: true});
        })()"""
    )
    row = "document.querySelectorAll('#processes tbody tr')[1]"
    for _ in range(MAX_TRIES):  # the page is sent samples: those of a short restart may both be from after it
        num_restarts = faulty_ring.kill("tokenizer", signal.SIGKILL)
        faulty_ring.wait_for_restart("tokenizer", num_restarts)
        shown.wait_for(f"{row}.cells[5].textContent === '{num_restarts}' && {READY}")
        shown.wait_for("document.getElementById('status').textContent === 'ready'")
        if shown.run("states.some(state => ['dead', 'restarting', 'starting'].includes(state))"):
            break
    else:
        raise AssertionError("the tokenizer never turned red")
    run_prompt(shown)
    assert shown.run("document.getElementById('output').childElementCount") > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(shown: BrowserPage, scheme: str):
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("needs the package axe-core-python, for the axe.min.js in it")
    shown.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    shown.run(f"{Path(found.origin).with_name('axe.min.js').read_text(encoding='utf-8')}\n0")
    violations = shown.run(
        """axe.run(document, {resultTypes: ["violations"]}).then(({violations}) => violations
        .filter(({impact}) => ["serious", "critical"].includes(impact))
        .map(({id, nodes}) => [id, nodes.map(({target, failureSummary}) => [target, failureSummary])]))"""
    )
    assert violations == []


def test_top_shows_the_same_in_a_terminal(faulty_ring: RingClient):
    command = [sys.executable, str(ROOT / "launch.py"), "top", "--run-dir", str(faulty_ring.run_dir.path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for name in ("frontend", "tokenizer", "scheduler", "detokenizer"):
        (row,) = [line.split() for line in lines if line.split()[:1] == [name]]
        assert row[1] in ("ready", "busy")
    assert any(line.startswith("KV cache") for line in lines)


def test_the_operator_has_more(page: BrowserPage, plain_ring: RingClient):
    """On the server's own page, with the key. Other pages may not, nor this one without the key."""
    page.open(f"{plain_ring.url}/pipeline")
    page.wait_for("document.getElementById('status')?.textContent === 'ready'")
    assert page.run("document.getElementById('actions').hidden")
    page.run(f"document.getElementById('key').value = {ADMIN_KEY!r}")
    page.run("document.getElementById('key-form').requestSubmit()")
    page.wait_for("!document.getElementById('actions').hidden")
    page.wait_for("[...document.querySelectorAll('#processes button')].some(button => !button.hidden)")
    plain_ring.generate(list(range(3, 60)), max_tokens=2)
    page.run("document.getElementById('snapshot').click()")
    page.wait_for("document.getElementById('action-note').textContent.startsWith('Written on the server')")
    page.run("document.getElementById('tree-show').click()")
    page.wait_for("document.querySelectorAll('#tree li').length > 0")
    assert page.run("sessionStorage.length") == 1
    assert page.run("localStorage.length") == 0
    status = page.run(
        f"""fetch("cache/explain", {{method: "POST", body: '{{"prompt": "a"}}', headers: {{
        "Content-Type": "application/json", Authorization: "Bearer {ADMIN_KEY}"}}}}).then(reply => reply.status)"""
    )
    assert status == 200, "a POST, with the server's own origin"
    page.run("sessionStorage.clear()")
