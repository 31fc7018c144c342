"""The command `fit`: its counts are those of a start, and a model of the hub is not downloaded for it."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from extras.fit import command, headers
from extras.fit.verdict import decide, fixed_bytes
from kernels.cpu.huge_pages import ALIGNMENT
from messages.config.images import ImageConfig
from messages.errors import BootError
from runtime.gguf.gguf_file import read_gguf
from runtime.gguf.header import read_header
from scheduler_proc.computing.backends.backend import Place
from scheduler_proc.computing.backends.cpu import loading
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading.family_loader import FamilyLoader
from scheduler_proc.computing.loading.target import find_target
from scheduler_proc.computing.vision.load_tower import load_tower
from supervisor.model.vision import read_vision_facts
from tests.checkpoints import build_checkpoint, make_config
from tests.gguf_files import Stored, gguf_bytes
from tests.supervisor.fake_hub import FakeHub
from tests.vision_models import make_vision_model

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
FLAGS: dict[str, Any] = {"num_pages": None, "max_num_seqs": 8}
LONG = 4096
ROW = re.compile(r"  (\S.*?)  +([\d.]+) GiB")


def no_report(text: str, fraction: float | None) -> None:
    pass


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """The command changes the level of our log for its process."""
    log = logging.getLogger("sluice")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="module", params=["llama-gqa-tied", "qwen3_5", "gemma2"])
def model_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    build_checkpoint(path, request.param)
    return path


def test_the_counts_are_those_of_a_start(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(model_dir, **FLAGS)
    free_bytes = fixed_bytes(decide(config, None).needs) + 12 * MIB
    verdict = decide(config, free_bytes)
    monkeypatch.setattr(loading, "available_memory_bytes", lambda *_: 12 * MIB)
    runner = load_runner(config, no_report)
    passes = runner.forward_passes
    assert isinstance(passes, CpuForwardPasses)
    assert (runner.num_pages, verdict.context) == (verdict.num_pages, config.facts.max_model_len)
    assert verdict.needs.sizes.num_bytes(verdict.num_pages) == passes.cache.num_bytes
    assert verdict.needs.step_bytes == passes._workspace.num_bytes  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("variant", ["llama-gqa-tied", "qwen3moe"])
def test_weights_take_the_bytes_that_are_counted(tmp_path: Path, variant: str, quantization: str) -> None:
    build_checkpoint(tmp_path, variant, hidden_size=256)
    config = make_config(tmp_path, quantization=quantization, dtype="bfloat16", weight_cache=False, **FLAGS)
    loader = FamilyLoader("main", config, find_target(config, CpuBackend(), Place(1), no_report))
    weights = loader._make_weights(no_report)  # pyright: ignore[reportPrivateUsage]
    num_bytes = sum(weight.stored.nbytes for weight in weights.values())
    assert 0 <= loader.count_bytes() - num_bytes <= len(weights) * ALIGNMENT


def test_the_context_is_shortened_as_at_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied", max_position_embeddings=LONG)
    config = make_config(tmp_path, **FLAGS)
    sizes = decide(config, None).needs.sizes
    left_bytes = 2 * sizes.num_bytes(sizes.pages_per_context)  # the cache gets a quarter
    verdict = decide(config, fixed_bytes(decide(config, None).needs) + left_bytes)
    monkeypatch.setattr(loading, "available_memory_bytes", lambda *_: left_bytes)
    with pytest.raises(BootError) as caught:
        load_runner(config, no_report)
    assert verdict.is_shortened
    assert 0 < caught.value.fitting_len == verdict.context < LONG


def test_flags_decide_alone(model_dir: Path) -> None:
    config = make_config(model_dir, **FLAGS | {"kv_cache_memory_gb": 0.125})
    needs = decide(config, None).needs
    assert decide(config, fixed_bytes(needs) + 128 * MIB).context == config.facts.max_model_len
    assert decide(config, fixed_bytes(needs) + 64 * MIB).context == 0
    assert decide(config, fixed_bytes(needs) - 1).context == 0


def run_fit(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), "fit", *words],
        env={**own, **environment},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=90,
    )


def test_a_model_of_the_hub_is_counted_by_headers(tmp_path: Path) -> None:
    build_checkpoint(tmp_path / "model", "llama-gqa-tied", hidden_size=512, intermediate_size=4096)
    files = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    own = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", ""), "HF_HOME": str(tmp_path / "hub")}
    with FakeHub(files) as hub:
        remote = run_fit("owner/tiny", "--memory-gb", "2", **own, HF_ENDPOINT=hub.url)
    local = run_fit(str(tmp_path / "model"), "--memory-gb", "2", "--served-model-name", "owner/tiny")
    assert remote.returncode == 0, remote.stderr
    assert remote.stdout == local.stdout
    assert remote.stdout.startswith("owner/tiny: it fits\n")
    size = len(files["model.safetensors"])
    assert sum(end - begin for _, begin, end in hub.ranges) <= headers.FIRST_BYTES + 8 < size / 2
    assert "model.safetensors" not in hub.downloads


def test_without_the_hub_the_error_lists_the_places_searched(tmp_path: Path) -> None:
    ended = run_fit("owner/none", HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("launch.py fit: cannot find the model 'owner/none'")
    assert "http://127.0.0.1:9" in ended.stderr


class Remote:
    """A file as HfFileSystem opens it, which counts what is read."""

    def __init__(self, file: Path):
        self._file = BytesIO(file.read_bytes())
        self.size, self.num_read, self.seek = file.stat().st_size, 0, self._file.seek

    def read(self, num_bytes: int) -> bytes:
        data = self._file.read(num_bytes)
        self.num_read += len(data)
        return data


def test_the_header_of_a_gguf_file_is_read_until_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "FIRST_BYTES", 64)
    source, copy = tmp_path / "source.gguf", tmp_path / "copy.gguf"
    tensors = {
        "blk.0.ffn_up.weight": Stored("F32", (256, 256), bytes(range(256)) * 1024),
        "rope_freqs.weight": Stored("F32", (16,), b"\x01" * 64),
    }
    metadata = {"general.architecture": "llama", "tokenizer.ggml.tokens": [f"token {n}" for n in range(500)]}
    source.write_bytes(gguf_bytes(metadata, tensors))
    remote = Remote(source)
    headers.write_header(remote, copy)
    assert copy.stat().st_size == source.stat().st_size
    assert read_header(copy).metadata == read_header(source).metadata
    factors = read_gguf(copy).tensors["rope_freqs.weight"]
    assert copy.read_bytes()[factors.offset :][:64] == b"\x01" * 64
    assert remote.num_read < source.stat().st_size / 8


def test_damaged_headers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\xff" * 4096)
    with pytest.raises(BootError, match="version"):
        headers.write_header(Remote(tmp_path / "bad.gguf"), tmp_path / "copy.gguf")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 4096)
    with pytest.raises(BootError, match="the format allows"):
        headers.write_header(Remote(tmp_path / "bad.safetensors"), tmp_path / "copy.safetensors")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["/nowhere/model"], "/nowhere/model"),
        (["assets/shakespeare-gpt2", "--data-parallel", "2"], "only one model on one device"),
        (["assets/shakespeare-gpt2", "--max-model-length", "2"], "--max-model-len"),
    ],
)
def test_a_model_that_cannot_be_counted_is_an_error(
    words: list[str], text: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["fit", *words])
    monkeypatch.chdir(ROOT)
    assert command.main() == 2
    assert text in capsys.readouterr().err


def test_flags_that_help_are_listed(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied", hidden_size=512, intermediate_size=4096, num_hidden_layers=4)
    needs = decide(make_config(tmp_path, dtype="bfloat16", num_pages=None), None).needs
    memory_gb = (fixed_bytes(needs) - needs.weight_bytes // 8) / command.GIB
    monkeypatch.setattr(sys, "argv", ["fit", str(tmp_path), "--dtype", "bfloat16", "--memory-gb", str(memory_gb)])
    assert command.main() == 1
    shown = capsys.readouterr().out
    assert "it does not fit" in shown
    assert re.search(r"--quantization int4: 0\.\d+ GiB, a context of", shown)
    rows = {name: float(value) for name, value in ROW.findall(shown)}
    parts = ("weights", "steps", "processes", "KV cache")
    assert rows["together"] == pytest.approx(sum(rows[name] for name in parts), abs=0.02)
    assert rows["together"] > memory_gb


@pytest.mark.parametrize("num_encoders", [1, 2])
def test_the_tower_and_the_encodings_of_images_are_counted(tmp_path: Path, num_encoders: int) -> None:
    model_dir = make_vision_model("idefics3", tmp_path)
    config = make_config(model_dir, **FLAGS)
    vision = read_vision_facts(model_dir)
    images = ImageConfig(image_cache_mb=64.0, encoder_workers=num_encoders)
    reading = replace(config, images=images, facts=replace(config.facts, vision=vision))
    num_bytes = load_tower(reading, no_report).num_bytes(max_patches=0)  # of tiles, which have few
    text, verdict = decide(config, 8 << 30), decide(reading, 8 << 30)
    assert 0 <= verdict.images.tower_bytes / num_encoders - num_bytes <= 100 * ALIGNMENT
    assert verdict.images.cache_bytes == 64 * MIB
    assert fixed_bytes(verdict.needs, verdict.images) == fixed_bytes(text.needs) + sum(verdict.images)
    lines = "\n".join(command.describe(reading, verdict))
    assert "tower " in lines
    assert "--image-cache-mb" in lines
    assert "tower " not in "\n".join(command.describe(config, text))
