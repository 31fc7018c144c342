"""The memory for models on a GPU, with a stand-in for the torch of the child process."""

from pathlib import Path

import pytest

from extras.models.gpu_memory import free_gpu_bytes
from messages.config.server import ModelConfig
from messages.errors import UsageError
from supervisor.model import weight_bytes

TORCH = """
class cuda:
    def is_available():
        return {is_available}

    def mem_get_info(name):
        return {free}[name], 100
"""


@pytest.fixture(autouse=True)
def gpu_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a GPU's driver."""
    file = tmp_path / "gpu"
    file.touch()
    monkeypatch.setattr(weight_bytes, "GPU_FILES", (str(file),))
    return file


def write_torch(folder: Path, monkeypatch: pytest.MonkeyPatch, is_available: bool, **free: int) -> None:
    names = {name.replace("_", ":"): num_bytes for name, num_bytes in free.items()}
    (folder / "torch.py").write_text(TORCH.format(is_available=is_available, free=names), encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_it_is_that_of_the_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_torch(tmp_path, monkeypatch, True, cuda_0=30, cuda_1=50)
    for device, num_bytes in {"auto": 30, "cuda": 30, "cuda:1": 50, "cuda:0,cuda:1": 80, "cpu": 0}.items():
        assert free_gpu_bytes(ModelConfig(device=device)) == num_bytes, device


def test_models_run_on_the_cpu_where_torch_finds_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu_file: Path
):
    write_torch(tmp_path, monkeypatch, False)
    assert free_gpu_bytes(ModelConfig()) == 0
    (tmp_path / "torch.py").write_text("raise SystemExit('asked')", encoding="utf-8")
    gpu_file.unlink()
    assert free_gpu_bytes(ModelConfig()) == 0


def test_a_gpu_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "torch.py").write_text("raise SystemExit('the driver is too old')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"give --models-memory-gb \(the driver is too old\)"):
        free_gpu_bytes(ModelConfig())
