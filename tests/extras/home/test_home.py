"""The commands of people who run models themselves, against a frontend whose ring is played by the test."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from extras.home import agents, models
from extras.home import run as command
from extras.home.agents import AGENTS
from extras.home.run import Chat
from extras.home.server import Target
from messages.config.server import Config, ModelConfig, ModelFacts
from messages.errors import SluiceError
from messages.ring.replies import Usage
from runtime.run_dir import RunDir
from supervisor.client.running import RunningServer
from tests.frontend.frontend_run import FrontendRun, InThread, final, step
from tests.frontend.images.test_chat_images import vision_config
from tests.ring.models_server import ModelsServer


def chat_with(run: FrontendRun) -> Chat:
    host, port = run.address
    return Chat(Target(f"http://{host}:{port}", "m"), is_terminal=False)


def answer(run: FrontendRun, chat: Chat, question: str, text: str) -> list[dict[str, str]]:
    """Asks, plays the ring's answer, and returns the messages that the model saw."""
    asked = InThread(lambda: [chat.ask(question)])
    message = run.take_request()
    assert message.chat is not None
    run.send(step([(message, 5, text)]))
    run.send(final(message, "", (), finish_reason="stop", usage=Usage(3, 0, 1)))
    asked.result()
    return json.loads(message.chat.messages)


def test_a_chat_remembers_and_forgets(server: FrontendRun, capsys: pytest.CaptureFixture[str]):
    chat = chat_with(server)
    chat.set("system Be brief.")
    chat.set("temperature 0.25")
    seen = answer(server, chat, "One?", "Yes.")
    assert [(each["role"], each["content"]) for each in seen] == [("system", "Be brief."), ("user", "One?")]
    assert capsys.readouterr().out == "Yes.\n"
    seen = answer(server, chat, "Two?", "No.")
    assert [each["content"] for each in seen] == ["Be brief.", "One?", "Yes.", "Two?"]
    chat.undo()
    assert [each["content"] for each in answer(server, chat, "Three?", "Ja.")][-3:] == ["One?", "Yes.", "Three?"]
    assert "temperature: 0.25" in chat.show()


def test_no_answer_commands_the_terminal(server: FrontendRun, capsys: pytest.CaptureFixture[str]):
    chat = chat_with(server)
    answer(server, chat, "One?", "a\x1b]52;c;aGk=\x07b\x9b2Jc\x7f\x08\td\ne\rf")
    assert capsys.readouterr().out == "a]52;c;aGk=b2Jc\td\nef\n"
    assert "\x1b" in chat.messages[-1]["content"], "the model sees what it wrote"


def test_a_refused_question_is_not_part_of_the_conversation(server: FrontendRun):
    chat = chat_with(server)
    chat.set("temperature 9")
    with pytest.raises(SluiceError, match="temperature must be a number in"):
        chat.ask("One?")
    assert not chat.messages
    with pytest.raises(SluiceError, match="the value must be JSON"):
        chat.set("temperature warm")


def test_a_chat_continues_with_another_model(capsys: pytest.CaptureFixture[str]):
    with ModelsServer() as several:
        several.set("large", "loaded")
        chat = Chat(Target(several.url, "small"), is_terminal=False)
        command._obey(chat, "/models")  # pyright: ignore[reportPrivateUsage]
        assert capsys.readouterr().out.splitlines() == ["small  unloaded", "large  loaded", "vectors  unloaded"]
        command._obey(chat, "/model large")  # pyright: ignore[reportPrivateUsage]
        chat.ask("Who?")
        assert capsys.readouterr().out.endswith("I am large.\n")


@pytest.mark.parametrize(
    ("lines", "text"),
    [(["hi"], "hi"), (['"""one', 'two"""'], "one\ntwo"), (['"""', "one", '"""'], "one"), (['"""one"""'], "one")],
)
def test_quotes_make_one_message_of_lines(lines: list[str], text: str, monkeypatch: pytest.MonkeyPatch):
    left = iter(lines)
    monkeypatch.setattr("builtins.input", lambda prompt: next(left))
    assert command._read_message() == text  # pyright: ignore[reportPrivateUsage]
    assert not list(left)


def test_a_model_that_cannot_be_served_is_reported_with_its_reason():
    words = [sys.executable, "launch.py", "run", "/nowhere/model", "hi", "--dtype", "float32"]
    ended = subprocess.run(words, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.startswith("launch.py run: ")
    assert "/nowhere/model" in ended.stderr


@pytest.mark.parametrize("name", sorted(AGENTS.keys() - {"continue"}))
def test_an_agent_gets_the_address_and_the_model(
    server: FrontendRun, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """The printed line is run by a shell, with a program in the agent's place that shows what it got."""
    monkeypatch.setattr(agents, "require_target", lambda model: Target(server.url, "org/m"))
    monkeypatch.setattr(sys, "argv", ["agents", name, "--", "--verbose", "--", "x y"])
    assert agents.main() == 0
    line = capsys.readouterr().out
    program = tmp_path / name
    program.write_text('#!/bin/sh\nenv\nprintf "%s\\n" "$@"\n')
    program.chmod(0o700)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    shown = subprocess.run(["sh", "-c", line], check=True, capture_output=True, text=True, env={"PATH": path}).stdout
    assert server.url in shown
    assert "org/m" in shown
    assert bool(re.search(r"[=:] ?512\b", shown)) == (name in ("claude", "codex", "opencode"))  # the context
    assert shown.endswith("--verbose\n--\nx y\n")


def test_the_agent_of_an_editor_gets_a_file(
    server: FrontendRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(agents, "require_target", lambda model: Target(server.url, "m"))
    monkeypatch.setattr(sys, "argv", ["agents", "continue"])
    assert agents.main() == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert (model["model"], model["apiBase"]) == ("m", f"{server.url}/v1")
    assert model["defaultCompletionOptions"] == {"contextLength": 512}


@pytest.mark.parametrize("name", ["continue", "opencode"])
def test_the_settings_of_an_agent_name_images_if_the_model_reads_them(
    server: FrontendRun, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["agents", name])
    with FrontendRun(vision_config()) as reading:
        shown: list[bool] = []
        for run in (server, reading):
            url = run.url
            monkeypatch.setattr(agents, "require_target", lambda model, url=url: Target(url, "m"))
            assert agents.main() == 0
            shown.append("image" in capsys.readouterr().out)
    assert shown == [False, True]


def test_an_agent_without_a_server_or_a_program_is_an_error(
    server: FrontendRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["agents", "codex", "--model", "no such model"])
    assert agents.main() == 1
    assert "no server of this user serves no such model" in capsys.readouterr().err
    monkeypatch.setattr(agents, "require_target", lambda model: Target(server.url, model or "m"))
    monkeypatch.setattr(sys, "argv", ["agents", "codex", "--model", "other", "--exec", "--", "--full-auto"])
    assert agents.main() == 1
    assert f"{server.url} answers 404" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["agents", "codex", "--model", "m", "--exec", "--", "--full-auto"])
    monkeypatch.setenv("PATH", "/nowhere")
    assert agents.main() == 1
    assert "codex is not installed" in capsys.readouterr().err


def test_models_in_folders_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "config.json").write_text("{}")
    (tmp_path / "one" / "model.safetensors").write_bytes(bytes(2 << 20))
    (tmp_path / "two-Q4_0.gguf").write_bytes(bytes(3 << 10))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    facts = ModelFacts(model_dir="", tokenizer_dir="", served_names=("two", "other"), vocab_size=0, max_model_len=0)
    configs = [Config(facts=facts), Config(facts=facts, model=ModelConfig(model=str(tmp_path / "two-Q4_0.gguf")))]
    servers = [RunningServer(RunDir(tmp_path), config) for config in configs]
    monkeypatch.setattr(models, "find_servers", lambda: servers)  # one of several models, and that of the one it loaded
    monkeypatch.setattr(sys, "argv", ["models", os.path.relpath(tmp_path)])
    assert models.main() == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        [os.path.relpath(tmp_path / "two-Q4_0.gguf"), "gguf", "3.0", "KiB", "running"],
        [os.path.relpath(tmp_path / "one"), "safetensors", "2.0", "MiB"],
    ]
