"""The libraries that an image with CUDA's torch lacks: fetched as wheels with a network, installed without one.

    python -m tools.gpu_wheels fetch [--python-version 3.12]      (make gpu-wheels)
    python -m tools.gpu_wheels install                            (make gpu-install)

`fetch` downloads wheels for Linux on x86-64 into a folder to take along. `install` needs no network: it installs only
the libraries that the interpreter lacks, into a folder that `make test-gpu` and `make bench-gpu` put on PYTHONPATH.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = Path("build/gpu-wheels")
TARGET = Path("build/gpu-site")
GIVEN = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "huggingface_hub")
"""Requirements of the server that are large and part of every image made for models."""

FOR_TESTS = ("pytest", "pytest-timeout", "hypothesis", "tqdm")
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (35, 34, 31, 28, 27, 17)),
    "manylinux2014_x86_64",
)
"""Wheels that run with glibc 2.35, as in Ubuntu 22.04 and later. pip takes each tag literally."""

NAME = re.compile(r"[A-Za-z0-9._-]+")
"""How a requirement begins."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or pip's exit code, or 2 if there are no wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("fetch", "install"))
    parser.add_argument("--wheels", type=Path, default=WHEELS, metavar="DIR", help="default: %(default)s")
    parser.add_argument("--target", type=Path, default=TARGET, metavar="DIR", help="for install (%(default)s)")
    parser.add_argument("--python-version", default="3.12", help="of the image, for fetch (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.command == "fetch":
        return fetch(options.wheels, options.python_version)
    return install(options.wheels, options.target)


def fetch(wheels: Path, python_version: str) -> int:
    """Downloads what is needed, and what that needs, in the newest versions that `pyproject.toml` allows."""
    flags = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python_version}"]
    flags += [f"--platform={platform}" for platform in PLATFORMS]
    return run_pip(["download", "--quiet", f"--dest={wheels}", *flags, *list_requirements()])


def list_requirements() -> list[str]:
    """Returns the requirements in `pyproject.toml` of the libraries to fetch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [line for line in project["dependencies"] if name_of(line) not in GIVEN]
    return needed + [line for line in project["optional-dependencies"]["dev"] if name_of(line) in FOR_TESTS]


def install(wheels: Path, target: Path) -> int:
    """Installs the wheels of which the interpreter has no version."""
    found = sorted(wheels.glob("*.whl"))
    if not found:
        print(f"gpu_wheels: {wheels} has no wheels; on a machine with a network, fetch fills it", file=sys.stderr)
        return 2
    lacking = [wheel for wheel in found if not is_installed(name_of(wheel.name.partition("-")[0]))]
    print(f"{len(found) - len(lacking)} of {len(found)} are there; into {target}: ", end="")
    print(", ".join(wheel.name.partition("-")[0] for wheel in lacking) or "none", flush=True)
    if not lacking:
        return 0
    flags = ["--quiet", "--root-user-action=ignore", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
    return run_pip(["install", *flags, f"--target={target}", *map(str, lacking)])


def is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def name_of(requirement: str) -> str:
    found = NAME.match(requirement)
    assert found is not None
    return found[0]


def run_pip(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
