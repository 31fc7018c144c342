"""Which of this user's run directories are servers."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages.config.server import Config, ModelFacts
from runtime.lifeline import make_lifeline
from runtime.run_dir import RunDir, claim
from supervisor.client.running import NoServerError, choose_server, find_model_server, find_servers, find_whole_servers

FACTS = ModelFacts(model_dir="m", tokenizer_dir="m", served_names=("m",), vocab_size=8, max_model_len=8)


@contextlib.contextmanager
def running(path: Path) -> Iterator[RunDir]:
    """A process of a server in this directory, which has no address yet."""
    run_dir, lock = claim(path)
    lifeline = make_lifeline(run_dir)
    run_dir.write_config(Config(facts=FACTS))
    command = [sys.executable, "-c", "input()", "--run-dir", str(run_dir.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield run_dir
        process.communicate(b"\n")
    os.close(lifeline)
    os.close(lock)


def test_an_engine_that_has_joined_a_server_is_none_itself(tmp_path: Path):
    with running(tmp_path / "run") as run_dir:
        assert run_dir.path not in [server.run_dir.path for server in find_servers()]
        with pytest.raises(NoServerError, match="an engine that joined a server"):
            choose_server(run_dir.path, None)
        run_dir.address_file.write_text("http://127.0.0.1:1\n")
        assert run_dir.path in [server.run_dir.path for server in find_servers()]
        assert choose_server(run_dir.path, None).run_dir.path == run_dir.path


def test_the_server_of_a_model_among_several_is_found_by_its_directory_only(tmp_path: Path):
    with running(tmp_path / "run") as whole, running(tmp_path / "run" / "models" / "m") as model:
        for run_dir in (whole, model):
            run_dir.address_file.write_text("http://127.0.0.1:1\n")
        found = {server.run_dir.path for server in find_whole_servers()}
        assert whole.path in found
        assert model.path not in found
        assert choose_server(model.path, None).run_dir.path == model.path
        server = choose_server(whole.path, None)
        assert find_model_server(server, "m").run_dir.path == model.path
        with pytest.raises(NoServerError, match="no server of a model other runs"):
            find_model_server(server, "other")
