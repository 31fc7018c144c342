"""Loading of towers: names, number formats, random weights, memory, and what is refused."""

import ctypes
import gc
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from messages.errors import BootError
from runtime.gguf.conversion import IN_BLOCKS
from scheduler_proc.computing.vision.load_tower import load_tower
from tests.mmproj_files import write_mmproj
from tests.scheduler_proc.computing.vision import towers
from tests.scheduler_proc.computing.vision.published import publish
from tests.vision_models import make_vision_model

VIEW = 32, 32
NUM_ROWS = {"gemma3": 4, "internvl": 4, "llava": 16, "lfm2_vl": 4, "llava_onevision": 17}


@pytest.mark.parametrize("family", NUM_ROWS)
def test_names_of_published_checkpoints(tmp_path: Path, family: str):
    model_dir = make_vision_model(family, tmp_path / "model", vision_layers=3)
    other = shutil.copytree(model_dir, tmp_path / "published")
    publish(family, other)
    layout, views = towers.layout_of(NUM_ROWS[family]), towers.random_views(VIEW)
    found, expected = (towers.load(family, each).encode(views, layout) for each in (other, model_dir))
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("flags", "distance"), [({"dtype": "bfloat16"}, 0.1), ({"quantization": "int8"}, 0.2), ({"dtype": "float16"}, 0.02)]
)
@pytest.mark.parametrize("family", ["idefics3", "internvl"])
def test_number_formats(tmp_path: Path, family: str, flags: dict[str, Any], distance: float):
    model_dir = make_vision_model(family, tmp_path)
    views, layout = towers.random_views(VIEW), towers.layout_of(4)
    expected = towers.load(family, model_dir).encode(views, layout)
    tower = towers.load(family, model_dir, **flags)
    found = tower.encode(views, layout)
    assert found.dtype == getattr(torch, flags.get("dtype", "float32"))
    assert 0 < towers.distance(found, expected) < distance


def test_linears_stay_in_blocks(tmp_path: Path):
    """A file in Q8_0 takes about a quarter of the memory."""
    sizes = {"vision_hidden": 256, "vision_layers": 3}
    model_dir = make_vision_model("idefics3", tmp_path / "model", **sizes)
    bytes_of = {
        form: towers.load("idefics3", model_dir, write_mmproj("idefics3", model_dir, tmp_path / form, form)).num_bytes(
            0
        )
        for form in ("F32", "Q8_0")
    }
    num_values = 3 * (4 * 256**2 + 2 * 256 * 544) + 256 * 4 * 64
    assert bytes_of["F32"] - bytes_of["Q8_0"] == pytest.approx(num_values * (4 - 34 / 32), rel=0.02)


def test_random_weights(tmp_path: Path):
    model_dir = make_vision_model("internvl", tmp_path)
    (model_dir / "model.safetensors").unlink()
    tower = towers.load("internvl", model_dir, load_format="dummy")
    assert tower.encode(towers.random_views(VIEW), towers.layout_of(4)).shape == (4, 64)


def test_rows_have_the_models_dtype_and_the_tower_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With `--dtype auto`, that depends on the processor."""
    model_dir = make_vision_model("idefics3", tmp_path / "model")
    layout, views = towers.layout_of(4), towers.random_views(VIEW)
    expected = towers.load("idefics3", model_dir).encode(views, layout)
    for vendor, flags, is_exact in (
        ("GenuineIntel", "avx512_bf16", True),
        ("GenuineIntel", "avx512_bf16 amx_bf16", False),
        ("AuthenticAMD", "avx512_bf16", False),
    ):
        cpu_info = tmp_path / "cpuinfo"
        cpu_info.write_text(f"vendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n\nvendor_id\t: another\n")
        monkeypatch.setattr("scheduler_proc.computing.backends.cpu.cores.CPU_INFO", cpu_info)
        found = towers.load("idefics3", model_dir, dtype="auto").encode(views, layout)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, expected.bfloat16()) is is_exact


def test_rows_are_float32_next_to_a_model_in_blocks(tmp_path: Path):
    """In a new process: whether the model computes in float32 depends on kernels that are loaded with the tower."""
    model_dir = make_vision_model("idefics3", tmp_path / "model")
    fields = json.loads((model_dir / "config.json").read_bytes()) | {IN_BLOCKS: True}
    (model_dir / "config.json").write_text(json.dumps(fields))
    script = (
        "import sys; from pathlib import Path; from tests.scheduler_proc.computing.vision import towers;"
        "tower = towers.load('idefics3', Path(sys.argv[1]), dtype='auto');"
        "print(tower.encode(towers.random_views((32, 32)), towers.layout_of(4)).dtype)"
    )
    found = subprocess.run([sys.executable, "-c", script, str(model_dir)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "torch.float32"


def test_memory_of_a_large_image_is_counted(tmp_path: Path):
    model_dir = make_vision_model("lfm2_vl", tmp_path, vision_hidden=256, vision_layers=1)
    tower, views = towers.load("lfm2_vl", model_dir), towers.random_views((640, 640))
    counted = tower.num_bytes(80 * 80)
    tower.encode(towers.random_views((64, 64)), towers.layout_of(4 * 4))  # loads code, which the peak would include
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # otherwise it uses memory again that earlier tests have freed
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that from here on
    before = _peak_bytes()
    tower.encode(views, towers.layout_of(40 * 40))
    assert counted / 2 < _peak_bytes() - before < counted


def _peak_bytes() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) << 10


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("idefics3", {"vision_config": None}, "vision_config is missing"),
        ("idefics3", {"scale_factor": 0}, "scale_factor must be a positive integer"),
        ("idefics3", {"vision_config.hidden_act": "mish"}, 'hidden_act is "mish": supported is'),
        ("idefics3", {"vision_config.num_attention_heads": 3}, "it must be a multiple of 3 heads"),
        ("idefics3", {"vision_config.patch_size": 9999}, "patch_size is .9999.: supported are squares"),
        ("idefics3", {"vision_config.num_hidden_layers": 10**6}, "num_hidden_layers must be at most 1000"),
        ("llava", {"vision_feature_layer": -4}, "vision_feature_layer is .-1.: supported are layers"),
        ("llava", {"vision_feature_select_strategy": "full"}, 'vision_feature_select_strategy is "full"'),
        ("llava_onevision", {"vision_aspect_ratio": "square"}, 'vision_aspect_ratio is "square"'),
        ("internvl", {"downsample_ratio": 0.001}, "it must be at least 1/32"),
    ],
)
def test_towers_that_are_refused(tmp_path: Path, family: str, change: dict[str, Any], message: str):
    model_dir = make_vision_model(family, tmp_path)
    path = model_dir / "config.json"
    config = json.loads(path.read_text())
    for name, value in change.items():
        *sections, field = name.split(".")
        section = config[sections[0]] if sections else config
        section[field] = value
    path.write_text(json.dumps(config))
    with pytest.raises(BootError, match=message):
        towers.load(family, model_dir)


def test_a_tower_of_another_width_is_refused(tmp_path: Path):
    config = towers.vision_config("idefics3", make_vision_model("idefics3", tmp_path))
    assert config.facts.vision is not None
    facts = replace(config.facts, vision=replace(config.facts.vision, row_width=128))
    with pytest.raises(BootError, match="the tower's rows have 64 numbers, but the model takes 128"):
        load_tower(replace(config, facts=facts), lambda *_: None)
