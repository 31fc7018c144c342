"""A Python that is too old or too new makes no environment, and the error names another."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.check_python import NEWEST, OLDEST
from tools.list_requirements import list_requirements

ROOT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
exec {python} -c 'import sys, runpy
sys.version_info, sys.argv = {version}, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")' "$@"
"""


def write_program(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o700)
    return file


def run_make(folder: Path, version: tuple[int, int, int], **programs: str) -> subprocess.CompletedProcess[str]:
    """Runs make with a Python of this version, on a machine with these further programs."""
    python = write_program(folder / "python", FAKE.format(python=sys.executable, version=version))
    for name, text in programs.items():
        write_program(folder / name, text)
    return subprocess.run(
        ["make", f"{folder}/venv/bin/python", f"VENV={folder}/venv", f"PYTHON={python}", "OTHER="],
        env={"PATH": f"{folder}:/bin:/usr/bin" if programs else "/bin", "PYENV_ROOT": str(folder)},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("version", "kind"), [((3, 10, 13), "old"), ((3, 15, 0), "new")])
def test_make_names_a_python_to_install(tmp_path: Path, version: tuple[int, int, int], kind: str) -> None:
    ended = run_make(tmp_path, version, **{"python3.13": "#!/bin/sh\nexit 0\n", "python3.14": "#!/bin/sh\nexit 127\n"})
    assert ended.returncode == 2
    text = f"is Python {version[0]}.{version[1]}, which is too {kind}: Sluice needs 3.11 to 3.14."
    assert text in ended.stderr
    assert f"make serve PYTHON={tmp_path}/python3.13\n" in ended.stderr, "3.14 is there, but cannot be run"
    assert not (tmp_path / "venv").exists()


def test_the_python_of_this_machine_is_supported() -> None:
    checked = subprocess.run([sys.executable, "tools/check_python.py"], cwd=ROOT, check=True, capture_output=True)
    assert (checked.stdout, checked.stderr) == (b"", b"")


def test_a_newer_python_is_found_for_tests(tmp_path: Path) -> None:
    def find(minor: int) -> str:
        fake = write_program(tmp_path / "python", FAKE.format(python=sys.executable, version=(3, minor, 0)))
        own = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYENV_ROOT": str(tmp_path)}
        command = [fake, "tools/check_python.py", "--other"]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=own).stdout

    newer = write_program(tmp_path / "python3.14", "#!/bin/sh\nexit 0\n")
    assert find(11) == find(13) == f"{newer}\n"
    assert find(14) == ""


def test_versions_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
    versions = [f"Programming Language :: Python :: 3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    assert [each for each in project["classifiers"] if "Python ::" in each] == versions
    left = list_requirements(["torch"])
    assert len(left) == len(list_requirements([])) - 1
    assert not any(line.startswith("torch") for line in left)
