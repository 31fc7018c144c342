"""Which of this user's run directories are servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from messages.config.server import Config, ModelFacts
from runtime.lifeline import make_lifeline
from runtime.run_dir import claim
from supervisor.client.running import NoServerError, choose_server, find_servers

FACTS = ModelFacts(model_dir="m", tokenizer_dir="m", served_names=("m",), vocab_size=8, max_model_len=8)


def test_an_engine_that_has_joined_a_server_is_none_itself(tmp_path: Path):
    run_dir, lock = claim(tmp_path / "run")
    lifeline = make_lifeline(run_dir)
    run_dir.write_config(Config(facts=FACTS))
    command = [sys.executable, "-c", "input()", "--run-dir", str(run_dir.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert run_dir.path not in [server.run_dir.path for server in find_servers()]
        with pytest.raises(NoServerError, match="an engine that joined a server"):
            choose_server(run_dir.path, None)
        run_dir.address_file.write_text("http://127.0.0.1:1\n")
        assert run_dir.path in [server.run_dir.path for server in find_servers()]
        assert choose_server(run_dir.path, None).run_dir.path == run_dir.path
        process.communicate(b"\n")
    os.close(lifeline)
    os.close(lock)
