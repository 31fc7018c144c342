import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisor.model.fetch import ANSWER_TIMEOUT_S
from tests.forked import run_forked
from tests.free_port import find_free_port
from tests.supervisor.fake_hub import COMMIT, FakeHub
from tests.supervisor.fake_run import environment

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": b"safe",
    "pytorch_model.bin": b"pickle",
    "onnx/config.json": b"{}",
    "rust_model.ot": b"rust",
}
TEXTS = {"config.json", "tokenizer.json"}
TIMEOUT_S = 60.0


class Fetch:
    """Fetches as `python -m supervisor.model.fetch` does, with models kept in `home` and a hub at the given address."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch):
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("HF_HOME", str(home))
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # tests that import transformers set it

    def __call__(self, endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        self._monkeypatch.setenv("HF_ENDPOINT", endpoint)
        return run_forked("tests.supervisor.model.fetch_with_environment", arguments)


@pytest.fixture
def fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    return Fetch(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def closed_endpoint() -> str:
    return f"http://127.0.0.1:{find_free_port()}"


@pytest.mark.parametrize(
    ("expected", "weights"),
    [
        ("auto", {"model.safetensors"}),
        ("safetensors", {"model.safetensors"}),
        ("pt", {"pytorch_model.bin"}),
        ("none", set()),
        ("tokenizer", set()),
    ],
)
def test_only_the_files_of_one_format_are_downloaded(fetch: Fetch, expected: str, weights: set[str]):
    with FakeHub(FILES) as hub:
        result = fetch(hub.url, "owner/tiny", "--requested", expected)
        assert result.returncode == 0, result.stdout + result.stderr
        directory = Path(result.stdout.strip())
        assert directory.name == COMMIT
        assert set(hub.downloads) == TEXTS | weights
        assert {file.name for file in directory.iterdir()} == TEXTS | weights
        assert all((directory / name).read_bytes() == FILES[name] for name in TEXTS | weights)


def test_modules_of_sentence_transformers_are_downloaded(fetch: Fetch):
    modules = {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"}
    others = {"onnx/config.json", "2_Dense/pytorch_model.h5", "1_Pooling/more/config.json"}
    with FakeHub(FILES | {name: name.encode() for name in modules | others}) as hub:
        result = fetch(hub.url, "owner/tiny")
        assert result.returncode == 0, result.stdout + result.stderr
        assert set(hub.downloads) == TEXTS | {"model.safetensors"} | modules


def test_a_model_with_pickled_weights_alone_is_taken(fetch: Fetch):
    with FakeHub({name: data for name, data in FILES.items() if name != "model.safetensors"}) as hub:
        result = fetch(hub.url, "owner/tiny")
        assert result.returncode == 0, result.stdout
        assert set(hub.downloads) == TEXTS | {"pytorch_model.bin"}
        refused = fetch(hub.url, "owner/tiny", "--requested", "safetensors")
        assert refused.returncode == 1
        assert "has no weights that can be read: looked for model*.safetensors" in refused.stdout


GGUF_FILES = {
    "config.json": b"{}",
    "README.md": b"",
    "tiny-Q4_K_M.gguf": b"GGUF4",
    "mmproj-tiny-f16.gguf": b"GGUFm",
    "Q8_0/tiny-Q8_0-00001-of-00002.gguf": b"GGUF8",
    "Q8_0/tiny-Q8_0-00002-of-00002.gguf": b"GGUF9",
}
IN_PARTS = "Q8_0/tiny-Q8_0-00001-of-00002.gguf"


def test_of_a_repository_of_gguf_one_model_is_downloaded_with_its_tower(fetch: Fetch, closed_endpoint: str):
    alone = {name: GGUF_FILES[name] for name in GGUF_FILES if not name.startswith("Q8_0")}
    with FakeHub(alone) as hub:
        result = fetch(hub.url, "owner/tiny")
        assert result.returncode == 0, result.stdout + result.stderr
        assert Path(result.stdout.strip()).read_bytes() == b"GGUF4"
        assert sorted(hub.downloads) == ["mmproj-tiny-f16.gguf", "tiny-Q4_K_M.gguf"]
    for arguments in ((), ("--requested", "gguf"), ("--gguf-file", "tiny-Q4_K_M.gguf")):
        assert fetch(closed_endpoint, "owner/tiny", *arguments).stdout == result.stdout
    missing = fetch(closed_endpoint, "owner/tiny", "--gguf-file", "tiny-Q8_0.gguf")
    assert missing.returncode == 1
    assert "it has no complete copy" in missing.stdout


def test_of_several_models_in_gguf_one_must_be_chosen(fetch: Fetch, closed_endpoint: str):
    with FakeHub(GGUF_FILES) as hub:
        undecided = fetch(hub.url, "owner/tiny")
        assert undecided.returncode == 1
        assert f"choose one with --gguf-file: {IN_PARTS}, tiny-Q4_K_M.gguf" in undecided.stdout
        absent = fetch(hub.url, "owner/tiny", "--gguf-file", "tiny.gguf")
        assert "owner/tiny has no file tiny.gguf; it has Q8_0/" in absent.stdout
        assert hub.downloads == []
        result = fetch(hub.url, "owner/tiny", "--gguf-file", IN_PARTS)
        assert result.returncode == 0, result.stdout + result.stderr
        parts = [IN_PARTS, IN_PARTS.replace("00001-of", "00002-of")]
        assert sorted(hub.downloads) == [*parts, "mmproj-tiny-f16.gguf"]
        found = Path(result.stdout.strip())
        assert found.read_bytes() == b"GGUF8"
    assert fetch(closed_endpoint, "owner/tiny", "--gguf-file", IN_PARTS).stdout == result.stdout
    found.with_name("tiny-Q8_0-00002-of-00002.gguf").unlink()
    assert fetch(closed_endpoint, "owner/tiny", "--gguf-file", IN_PARTS).returncode == 1


def test_other_weights_are_preferred_to_gguf(fetch: Fetch):
    with FakeHub(FILES | GGUF_FILES) as hub:
        assert fetch(hub.url, "owner/tiny").returncode == 0
        assert set(hub.downloads) == TEXTS | {"model.safetensors"}
        assert fetch(hub.url, "owner/tiny", "--gguf-file", "tiny-Q4_K_M.gguf").stdout.strip().endswith("Q4_K_M.gguf")


def test_the_cache_serves_where_the_hub_cannot_be_reached(fetch: Fetch, closed_endpoint: str):
    with FakeHub(FILES) as hub:
        fresh = fetch(hub.url, "owner/tiny")
    cached = fetch(closed_endpoint, "owner/tiny")
    assert cached.returncode == 0, cached.stdout
    assert cached.stdout == fresh.stdout
    assert "using the copy of owner/tiny in the cache" in cached.stderr
    assert fetch(closed_endpoint, "owner/tiny", "--requested", "tokenizer").returncode == 0
    assert fetch(closed_endpoint, "owner/tiny", "--requested", "pt").returncode == 1


def test_a_cache_without_all_shards_does_not_serve(fetch: Fetch, tmp_path: Path, closed_endpoint: str):
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    files = {"config.json": b"{}", "model.safetensors.index.json": index, "model-1.safetensors": b"1"}
    with FakeHub(files) as hub:
        assert fetch(hub.url, "owner/tiny").returncode == 0
        assert fetch(closed_endpoint, "owner/tiny").returncode == 1
        hub.files["model-2.safetensors"] = b"2"
    directory = next(tmp_path.glob("hub/models--owner--tiny/snapshots/*"))
    (directory / "model-2.safetensors").write_bytes(b"2")
    assert fetch(closed_endpoint, "owner/tiny").returncode == 0


def test_a_whole_model_in_the_cache_serves_next_to_an_index_of_shards(fetch: Fetch, closed_endpoint: str):
    index = json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    files = {"config.json": b"{}", "model.safetensors.index.json": index, "model.safetensors": b"1"}
    with FakeHub(files) as hub:
        assert fetch(hub.url, "owner/tiny").returncode == 0
    assert fetch(closed_endpoint, "owner/tiny").returncode == 0


def test_an_unreachable_hub_ends_in_one_message_with_the_ways_out(fetch: Fetch, tmp_path: Path, closed_endpoint: str):
    began_s = time.monotonic()
    result = fetch(closed_endpoint, "gpt2", "--revision", "v2")
    assert time.monotonic() - began_s < 40
    assert result.returncode == 1
    assert result.stderr == ""
    for part in (
        "cannot find the model 'gpt2'",
        str(tmp_path / "hub"),
        closed_endpoint,
        "--model DIR",
        "`hf download gpt2 --revision v2 --local-dir gpt2`",
        "HF_HOME",
        "HF_ENDPOINT",
        "the bundled model needs no network",
    ):
        assert part in result.stdout


def test_a_hub_that_accepts_and_never_answers_is_provided_up_in_time(fetch: Fetch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        result = fetch(f"http://127.0.0.1:{silent.getsockname()[1]}", "gpt2")
        assert time.monotonic() - began_s < 40
    assert result.returncode == 1
    assert "cannot find the model 'gpt2'" in result.stdout


@pytest.mark.parametrize(
    ("refusal", "arguments", "message"),
    [
        ((404, "RepoNotFound"), ("owner/tinny",), "there is no model 'owner/tinny', neither as a directory nor on"),
        ((401, "RepoNotFound"), ("owner/tinny",), "set HF_TOKEN where it is private"),
        ((403, "GatedRepo"), ("owner/gated",), "owner/gated is gated: accept its terms"),
        ((404, ""), ("owner/tiny", "--revision", "v9"), "owner/tiny has no revision 'v9'"),
        ((500, ""), ("owner/other",), "cannot find the model 'owner/other'"),
        ((404, ""), ("not a name",), "'not a name' is neither a directory nor a possible name"),
    ],
)
def test_a_refusal_of_the_hub_has_its_own_message(
    fetch: Fetch, refusal: tuple[int, str], arguments: tuple[str, ...], message: str
):
    with FakeHub(FILES, refusal) as hub:
        result = fetch(hub.url, *arguments)
    assert result.returncode == 1
    assert message in result.stdout


def test_the_look_up_ends_with_its_parent(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code = (
            "import os, subprocess, sys, time\n"
            "command = [sys.executable, '-m', 'supervisor.model.fetch', 'gpt2']\n"
            "subprocess.Popen([*command, '--parent-pid', str(os.getpid())])\n"
            "time.sleep(60)\n"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment(
                HF_HOME=str(tmp_path),
                HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}",
                HF_HUB_OFFLINE="0",  # tests that import transformers set it
            ),
        )
        silent.settimeout(TIMEOUT_S)
        connection, _ = silent.accept()
        parent.kill()
        parent.wait()
        connection.settimeout(ANSWER_TIMEOUT_S - 1)
        while connection.recv(1 << 16):  # the connection ends with the process, before the process gives up on it
            pass
        connection.close()
