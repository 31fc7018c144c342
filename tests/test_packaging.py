"""The installed package: one package, `sluice`, and the command of that name, which runs without a checkout."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_import_law import FILES, ROOT

OTHER = "other = True\n"
PACKAGES = {file.relative_to(ROOT).parts[0] for file in FILES if file.parent != ROOT} - {"sluice"}
NOT_INSTALLED = {"__pycache__", "prebuilt"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's contents, next to another distribution's `kernels`."""
    pytest.importorskip("setuptools", reason="builds a wheel without a network, with the setuptools that is installed")
    folder = tmp_path_factory.mktemp("installed")
    for name in ("setup.py", "pyproject.toml", "README.md", "launch.py", "sluice", *PACKAGES):
        source, copy = ROOT / name, folder / "source" / name
        copy.parent.mkdir(exist_ok=True)
        if source.is_file():
            shutil.copy(source, copy)
        else:
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*NOT_INSTALLED))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    environment = {**os.environ, "SLUICE_WITHOUT_KERNELS": "1"}  # the kernels are not needed here
    subprocess.run([*command, str(folder / "wheels"), str(folder / "source")], check=True, env=environment, timeout=100)
    (wheel,) = (folder / "wheels").iterdir()
    assert re.fullmatch(r"sluice-[\d.]+-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    target = folder / "site"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(target)
    (target / "kernels").mkdir()
    (target / "kernels" / "__init__.py").write_text(OTHER)
    return target


def run_python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(  # noqa: PLW1510 (some fail on purpose)
        [sys.executable, *arguments], env=environment, cwd=site.parent, capture_output=True, text=True, timeout=60
    )


def test_it_hides_no_other_package(site: Path):
    """Other distributions have packages of the names that ours have inside: Hugging Face's kernels is one."""
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"sluice", "kernels"}
    assert run_python(site, "-c", "import kernels, sluice; print(kernels.other)").stdout == "True\n"


def test_every_file_of_our_packages_is_installed(site: Path):
    app = site / "sluice" / "app"
    installed = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    ours = [file for package in PACKAGES for file in (ROOT / package).rglob("*") if file.is_file()]
    names = {file.relative_to(ROOT).as_posix() for file in ours if not NOT_INSTALLED & set(file.parts)}
    assert len(names) > 500
    assert installed == names | {"launch.py"}


def test_every_folder_of_a_package_is_a_package():
    folders = {file.parent for file in FILES if file.parent != ROOT}
    assert not [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()]


def test_the_command_is_that_of_a_checkout_under_its_own_name(site: Path):
    call = "import sys; sys.argv[0] = 'sluice'; from sluice.command import main; sys.exit(main())"
    assert run_python(site, "-c", call, "--version").stdout.startswith("sluice ")
    shown = run_python(site, "-c", call, "--help").stdout
    assert "sluice serve [--model DIR] [flags], or sluice COMMAND" in shown
    missing = run_python(site, "-c", call, "serve", "/nowhere/model")
    assert missing.returncode
    assert missing.stderr.startswith("sluice: ")
    assert "/nowhere/model" in missing.stderr
    assert run_python(site, "-c", call, "whatif", "--help").stdout.startswith("usage: sluice whatif")
