"""Children that limit themselves work under hard limits of the machine, and a failure of theirs is the server's."""

import resource
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from messages.config.server import ModelFacts
from messages.errors import RequestError
from messages.ring.requests import ChatPrompt
from runtime.chat_files import DEFAULT, ChatFiles
from runtime.child_process import ROOT, ChildEndedError, ChildTimeoutError, lower_limit
from tests.ring.client import BARD_DIR
from tokenizer_proc.template_process import TemplateProcess

HARD_BYTES = 40 << 30
FACTS = ModelFacts(
    model_dir=str(BARD_DIR), tokenizer_dir=str(BARD_DIR), served_names=("m",), vocab_size=50257, max_model_len=64
)
FILES = ChatFiles({DEFAULT: "{{ messages[0].content }}"}, {})
CHAT = ChatPrompt(b'[{"role": "user", "content": "hello"}]')

UNDER_LIMITS = f"""
import msgspec
from messages.config.server import ModelFacts
from messages.ring.requests import ChatPrompt, Grammar
from runtime.chat_files import ChatFiles
from tokenizer_proc.grammar_checks import GrammarChild
from tokenizer_proc.template_process import TemplateProcess

print(TemplateProcess(msgspec.json.decode({msgspec.json.encode(FILES)!r}, type=ChatFiles)).render(
    msgspec.json.decode({msgspec.json.encode(CHAT)!r}, type=ChatPrompt)))
child = GrammarChild(msgspec.json.decode({msgspec.json.encode(FACTS)!r}, type=ModelFacts))
print(child.check(Grammar("json_schema", "{{}}", "format"), 60).error)
"""


def limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (HARD_BYTES, HARD_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (1_000, 1_000))


def test_chats_and_grammars_work_under_hard_limits():
    command = [sys.executable, "-c", UNDER_LIMITS]
    stated = subprocess.check_output(command, cwd=ROOT, preexec_fn=limit, text=True, timeout=120)
    assert stated.split() == ["hello", "None"]


def test_only_the_soft_limit_is_lowered(monkeypatch: pytest.MonkeyPatch):
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: taken.append(limits))
    for hard in (resource.RLIM_INFINITY, 50, 200):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, hard=hard: (hard, hard))
        lower_limit(resource.RLIMIT_AS, 100)
    assert taken == [(100, resource.RLIM_INFINITY), (50, 50), (100, 200)]


@pytest.mark.parametrize("error", [ChildEndedError(1), ChildEndedError(-9), ChildTimeoutError(-9)])
def test_a_failure_of_the_child_is_no_mistake_of_the_client(monkeypatch: pytest.MonkeyPatch, error: ChildEndedError):
    templates = TemplateProcess(FILES)

    def fail(frame: bytes, timeout_s: float) -> bytes:
        raise error

    monkeypatch.setattr(templates, "ask", fail)
    with pytest.raises(RequestError if isinstance(error, ChildTimeoutError) else ChildEndedError) as raised:
        templates.render(CHAT)
    if isinstance(raised.value, RequestError):
        assert raised.value.info.status == 503
    templates.close()


def test_the_limits_are_set_in_one_place():
    files = [path for package in ("runtime", "tokenizer_proc") for path in Path(ROOT, package).rglob("*.py")]
    assert [path.name for path in files if ".setrlimit(" in path.read_text()] == ["child_process.py"]
