"""A machine without the model joins: it gets the files from the head and serves the model's tokens."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.server_process import ServerProcess
from kernels.cpu.build import cache_dir
from supervisor.python_process import ROOT
from tests.free_port import find_free_port
from tests.frontend.frontend_run import wait_until
from tests.ring.client import BARD_DIR, RingClient, body
from tests.ring.conftest import READY_TIMEOUT_S

pytestmark = pytest.mark.ring

MODEL = "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"


def test_a_joiner_with_an_empty_cache_serves_the_same_tokens(tmp_path: Path):
    model_dir, cache = tmp_path / "head" / "model", tmp_path / "cache"
    model_dir.mkdir(parents=True)
    (cache / "sluice").mkdir(parents=True)
    for library in cache_dir().glob("kernels-*"):
        (cache / "sluice" / library.name).symlink_to(library)
    for name in MODEL:
        shutil.copy(BARD_DIR / name, model_dir)
    address = f"tcp://127.0.0.1:{find_free_port()}"
    # The path leads to the model only from the head's working directory.
    path = f"/proc/self/cwd/{os.path.relpath(model_dir, ROOT)}"
    flags = ["--model", path, "--dtype", "float32", "--data-parallel", "0", "--remote-engines", address]
    server, joiner = ServerProcess(flags), None
    with tempfile.TemporaryFile("w+") as log:
        try:
            wait_until(server.run_dir.join_keys.exists, READY_TIMEOUT_S)
            command = [sys.executable, str(ROOT / "launch.py"), "join", address, "--cpu-threads", "1"]
            joiner = subprocess.Popen(
                [*command, "--key-file", str(server.run_dir.join_keys)],
                cwd=tmp_path,
                env={**os.environ, "XDG_CACHE_HOME": str(cache)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            target = server.wait_until_ready(READY_TIMEOUT_S)
            ring = RingClient(f"http://{target.host}:{target.port}", server.run_dir)
            for case in json.loads((BARD_DIR / "golden.json").read_text())["cases"][:2]:
                (reply,) = ring.generate_all([body(case["prompt"], max_tokens=16)])
                assert reply.token_ids == case["output_ids"][:16]
        finally:
            server.stop()
            if joiner is not None:
                joiner.wait(READY_TIMEOUT_S)  # it ends with the head
        log.seek(0)
        text = log.read()
    (folder,) = (cache / "sluice" / "models").iterdir()
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: (BARD_DIR / name).read_bytes() for name in MODEL
    }
    assert f"fetching {len(MODEL)} files of the head's model" in text
