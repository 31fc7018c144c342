"""Wheels for a machine without a network: the list to fetch, and a real installation of a wheel made here."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.gpu_wheels import GIVEN, list_requirements, main, name_of


def make_wheel(folder: Path, name: str) -> None:
    """Writes a wheel with one module that contains a number."""
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "ANSWER = 42\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for file, text in (files | {f"{about}/RECORD": record}).items():
            archive.writestr(file, text)


def test_what_the_interpreter_lacks_is_installed_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A library in the image must not be shadowed by another version."""
    make_wheel(tmp_path, "sluice_test_wheel")
    make_wheel(tmp_path, "pytest_timeout")
    target = tmp_path / "site"
    assert main(["install", "--wheels", str(tmp_path), "--target", str(target)]) == 0
    assert f"1 of 2 are there; into {target}: sluice_test_wheel" in capsys.readouterr().out
    code = "import sluice_test_wheel; print(sluice_test_wheel.ANSWER)"
    environment = {"PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"
    assert not (target / "pytest_timeout.py").exists()


def test_an_empty_folder_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", "--wheels", str(tmp_path)]) == 2
    assert "fetch fills it" in capsys.readouterr().err


@pytest.mark.timeout(120)
def test_the_index_has_a_wheel_for_everything(tmp_path: Path) -> None:
    """If a library has wheels only for platforms that `fetch` does not name, pip fetches nothing at all."""
    if not has_index(tmp_path):
        pytest.skip("needs a package index")
    assert main(["fetch", "--wheels", str(tmp_path)]) == 0
    fetched = {wheel.name.partition("-")[0].lower().replace("_", "-") for wheel in tmp_path.glob("*.whl")}
    assert {name_of(line).lower().replace("_", "-") for line in list_requirements()} <= fetched


def has_index(folder: Path) -> bool:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}", "--retries=0"]
    done = subprocess.run([*command, "--timeout=5", "iniconfig"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def test_everything_that_the_server_needs_is_fetched_or_given() -> None:
    """With the bounds of `pyproject.toml`."""
    requirements = list_requirements()
    names = [name_of(line) for line in requirements]
    assert {"msgspec", "pyzmq", "starlette", "uvicorn", "httptools", "pyinstrument", "psutil", "hypothesis"} <= set(
        names
    )
    assert not set(names) & set(GIVEN)
    assert "msgspec>=0.19,<0.23" in requirements
    assert "ruff" not in names
