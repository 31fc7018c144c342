import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from jinja2 import TemplateError

from messages.errors import RequestError
from messages.ring.requests import ChatPrompt
from runtime.chat_files import DEFAULT, PLAIN_TEMPLATE, ChatFiles
from tokenizer_proc.template_child import MAX_BYTES
from tokenizer_proc.template_process import TemplateProcess
from tokenizer_proc.template_sandbox import TemplateSandbox

DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}STEP{% endfor %}{{ ns.x | length }}"

FAR_TOO_MUCH = {
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "concat": DOUBLE.replace("STEP", "{% set ns.x = ns.x ~ ns.x %}"),
    "add": DOUBLE.replace("STEP", "{% set ns.x = ns.x + ns.x %}"),
    "add lists": DOUBLE.replace("STEP", "{% set ns.x = ns.x | list + ns.x | list %}"),
    "join": DOUBLE.replace("STEP", "{% set ns.x = [ns.x, ns.x] | join %}"),
    "set block": DOUBLE.replace("STEP", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
    "macro": "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}"
    + DOUBLE.replace("STEP", "{% set ns.x = twice(ns.x) %}"),
    "repeat": "{{ 'a' * 10 ** 10 }}",
    "repeat a list": "{{ [0] * 10 ** 10 }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "a constant": "{{ 'a' | center(10000000000) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 10) }}",
    "justify": "{{ 'a'.ljust(10 ** 10) }}",
    "format": "{{ '{:>10000000000}'.format('a') }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "format filter": "{{ '%10000000000s' | format('a') }}",
    "replace": "{% set x = 'a' * 10 ** 6 %}{{ x | replace('a', x) }}",
    "replace method": "{% set x = 'a' * 10 ** 6 %}{{ x.replace('a', x) }}",
    "formats with widths": "{{ ('{:{}}' * 99).format(*(['a', 10 ** 7] * 99)) }}",
    "join of one text": "{% set x = 'a' * 10 ** 7 %}{{ ([x] * 999) | join }}",
    "indent of lines": "{{ ('a\n' * 10 ** 5) | indent(10 ** 5) }}",
    "tojson with indent": "{{ (['a'] * 10 ** 5) | tojson(indent=10 ** 5) }}",
    "set blocks": "{% set x %}{% for i in range(99999) %}{{ 'a' * (9999 + i) }}{% endfor %}{% endset %}{{ x }}",
    "many lists": "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x, range(99999) | list] %}"
    "{% endfor %}",
    "range": "{{ range(10 ** 9) | list }}",
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
}

ENDLESS = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters": "{% set x = 'a' * 10 ** 7 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
    "text of lists in lists": "{% set ns = namespace(x=[1, 1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}",
    "what is caught": "{% for a in range(99999) %}{% for b in range(99999) if a is sequence %}{% endfor %}{% endfor %}",
    "power": "{{ 10 ** (10 ** (9 + messages | length)) }}",
    "conditions": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
}


CHAT = ChatPrompt(b'[{"role": "user", "content": "Hi"}]')
MOST_BYTES = MAX_BYTES + (150 << 20)
"""Maximum memory of a process that has rendered a chat, including Python itself."""


def render(source: str, **variables: object) -> str:
    return TemplateSandbox().from_string(source).render(variables)


def max_bytes_of(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits on memory")
@pytest.mark.parametrize("name", FAR_TOO_MUCH)
def test_texts_do_not_grow_without_limit(name: str) -> None:
    templates = TemplateProcess(ChatFiles({DEFAULT: FAR_TOO_MUCH[name]}, {}), cpu_s=30)
    with pytest.raises(RequestError, match=r"more than 256 MiB|OverflowError|RecursionError") as raised:
        templates.render(CHAT)
    assert raised.value.info.status == 400
    assert max_bytes_of(templates.pid) < MOST_BYTES


@pytest.mark.parametrize("name", ENDLESS)
def test_work_comes_to_an_end(name: str) -> None:
    with pytest.raises(RequestError, match=r"has worked for 0.3 s and is not done"):
        TemplateProcess(ChatFiles({DEFAULT: ENDLESS[name]}, {}), cpu_s=0.3).render(CHAT)


def test_each_rendering_has_its_own_time_and_memory() -> None:
    """A template that has ended the process or reached its limit does not affect the next one."""
    sources = {DEFAULT: "{% for i in range(40) %}x{% endfor %}", "tool_use": ENDLESS["loops"]}
    templates = TemplateProcess(ChatFiles(sources, {}), cpu_s=0.3)
    for _ in range(2):
        with pytest.raises(RequestError):
            templates.render(msgspec.structs.replace(CHAT, template_kwargs=b'{"tools": []}'))
        assert templates.render(CHAT) == "x" * 40


def test_a_template_that_cannot_be_compiled_in_time() -> None:
    templates = TemplateProcess(ChatFiles({DEFAULT: "{{ 10 ** (10 ** 9) }}"}, {}), cpu_s=0.3)
    assert "is not done" in str(templates.find_mistake())
    with pytest.raises(RequestError, match="is not done"):
        templates.render(CHAT)


def test_a_process_that_has_ended_is_replaced() -> None:
    templates = TemplateProcess(ChatFiles({DEFAULT: "ok"}, {}))
    assert templates.render(CHAT) == "ok"
    os.kill(templates.pid, signal.SIGKILL)
    assert templates.render(CHAT) == "ok"


RENDERING = """
from runtime.chat_files import ChatFiles
from tests.tokenizer_proc.test_template_sandbox import CHAT, ENDLESS
from tokenizer_proc.template_process import TemplateProcess
templates = TemplateProcess(ChatFiles({"default": "ok", "tool_use": ENDLESS["loops"]}, {}), cpu_s=1000)
print(templates.pid, templates.render(CHAT), flush=True)
templates.render(CHAT.__class__(CHAT.messages, template_kwargs=b'{"tools": []}'))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals of a parent's death")
def test_the_process_ends_with_its_parent_even_while_it_renders() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", RENDERING], stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout is not None
        pid, text = parent.stdout.readline().split()
        assert text == "ok"
        child = psutil.Process(int(pid))
        parent.kill()
    child.wait(60)


ENDING = """
import sys, threading, time
from runtime.chat_files import ChatFiles
from tests.tokenizer_proc.test_template_sandbox import CHAT, ENDLESS
from tokenizer_proc.template_process import TemplateProcess
def render():
    try:
        templates.render(CHAT)
    except BaseException as error:
        print(repr(error), flush=True)
templates = TemplateProcess(ChatFiles({"default": ENDLESS["loops"]}, {}), cpu_s=1000)
assert templates.find_mistake() is None
threading.Thread(target=render, daemon=True).start()
time.sleep(0.3)
print(templates.pid, flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="signals of a parent's death")
def test_a_process_that_stops_while_a_thread_waits_for_the_child_reports_nothing() -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, cwd=root, check=True)
    (pid,) = ended.stdout.split()
    assert ended.stderr == ""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(60)


def test_a_long_chat_fits() -> None:
    text = "é😀" * 1_000_000
    chat = ChatPrompt(msgspec.json.encode([{"role": "user", "content": text}]))
    assert TemplateProcess(ChatFiles({DEFAULT: PLAIN_TEMPLATE}, {})).render(chat) == f"user: {text}\nassistant:"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ x.append(1) }}",
        "{{ x.__class__.__init__.__globals__['os'] }}",
        "{{ raise_exception.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ lipsum(5) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ joiner.__init__.__globals__.os }}",
        "{{ self.__init__.__globals__ }}",
    ],
)
def test_nothing_but_the_chat_can_be_reached(source: str) -> None:
    try:
        text = render(source, x=[1])
    except TemplateError:
        return
    assert text == "", "an attribute that is not there"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for i in x * 2 %}{% if loop.first %}{% continue %}{% endif %}{% if i == 1 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}",
            "2",
        ),
        ("{% for i in x %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}", "1/2,2/2"),
        ("{% for i in nothing %}{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{% for i in [[1, [2]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "12"),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc", "a\n  b\nc"),
        ("{{ '<&>' }}{{ {'a': '<é>'} | tojson }}", '<&>{"a": "<é>"}'),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ dict(a=1).a }}{{ '%s-%05.1f' % ('a', 2) }}{{ '**{}** 12345678'.format(1) }}", "1a-002.0**1** 12345678"),
        ("{% set a %} x {% endset %}{% set b | trim %} x {% endset %}[{{ a }}{{ b }}]", "[ x x]"),
        (
            "{% filter upper %}a{% endfilter %}{% macro m(a, b=2) %}{{ a ~ b ~ caller() }}{% endmacro %}"
            "{% call m(1) %}c{% endcall %}",
            "A12c",
        ),
        ("{{ none }}{{ 1 }}{{ nothing }}{{ x | map('string') | join('+') }}", "None11+2"),
    ],
)
def test_what_templates_may_use(source: str, text: str) -> None:
    assert render(source, x=[1, 2]) == text
