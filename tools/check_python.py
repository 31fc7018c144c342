"""Fails with the name of a Python to install if this one is not supported; `make` runs it before it makes `.venv`.

With `--other`, prints the newest supported Python of this machine, unless this one is as new. Older versions of Python
3 can run this file.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, NEWEST = (3, 11), (3, 14)
"""As in pyproject.toml: PyTorch has wheels for these."""

PYENV = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()


def main() -> int:
    if sys.argv[1:] == ["--other"]:
        name, path = next(iter(find_others()), ("", ""))
        if name and int(name.split(".")[1]) > sys.version_info[1]:
            print(path)
        return 0
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return 0
    sys.stderr.write(describe() + "\n")
    return 1


def describe() -> str:
    """Returns why this Python is refused, and another one or how to get one."""
    newest, oldest = (".".join(map(str, numbers)) for numbers in (NEWEST, OLDEST))
    kind = "old" if sys.version_info[:2] < OLDEST else "new"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    text = f"{sys.executable} is Python {version}, which is too {kind}: Sluice needs {oldest} to {newest}.\n"
    for _, path in find_others():
        return f"{text}This machine also has {path}: make serve PYTHON={path}"
    return (
        f"{text}Install one, for example `apt install python3.13 python3.13-venv`, `dnf install python3.13` or\n"
        "`uv python install 3.13`, then: make serve PYTHON=python3.13"
    )


def find_others():
    """Yields names and paths of supported Pythons that can make an environment, the newest first."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        found = [shutil.which(name), *sorted(map(str, PYENV.glob(f"versions/3.{minor}.*/bin/{name}")))]
        for path in filter(None, found):
            command = [path, "-c", "import ensurepip, ssl, sqlite3"]
            if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0:
                yield name, path
                break


if __name__ == "__main__":
    raise SystemExit(main())
