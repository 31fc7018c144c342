import os
import signal

import pytest
from jinja2 import TemplateError

from tokenizer_proc import template_sandbox
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
    "power": "{{ 10 ** 10 ** 10 }}",
    "center": "{{ 'a' | center(10 ** 10) }}",
    "a constant": "{{ 'a' | center(10000000000) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 10) }}",
    "justify": "{{ 'a'.ljust(10 ** 10) }}",
    "format": "{{ '{:>10000000000}'.format('a') }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "format filter": "{{ '%10000000000s' | format('a') }}",
    "replace": "{% set x = 'a' * 10 ** 6 %}{{ x | replace('a', x) }}",
    "replace method": "{% set x = 'a' * 10 ** 6 %}{{ x.replace('a', x) }}",
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
    "conditions": "{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}{% endfor %}",
}


def render(source: str, **variables: object) -> str:
    sandbox = TemplateSandbox()
    return sandbox.render(sandbox.compile_template(source), variables)


@pytest.mark.parametrize("name", FAR_TOO_MUCH)
def test_texts_do_not_grow_without_limit(name: str) -> None:
    with pytest.raises((TemplateError, OverflowError, RecursionError)):
        render(FAR_TOO_MUCH[name])


@pytest.mark.parametrize("name", ENDLESS)
def test_work_comes_to_an_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.05)
    with pytest.raises(TemplateError, match="is not done"):
        render(ENDLESS[name])


def test_the_end_of_the_time_does_not_wake_the_main_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wake it for ever: the loop reads nothing from the descriptor by which signals wake it."""
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.05)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        with pytest.raises(TemplateError):
            render(ENDLESS["loops"])
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        assert signal.set_wakeup_fd(before) == writer
        os.close(reader)
        os.close(writer)


def test_each_rendering_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.05)
    sandbox = TemplateSandbox()
    endless = sandbox.compile_template(ENDLESS["loops"])
    for _ in range(2):
        with pytest.raises(TemplateError):
            sandbox.render(endless, {})
        assert sandbox.render(sandbox.compile_template("{% for i in range(40) %}x{% endfor %}"), {}) == "x" * 40


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
