"""Prints what pyproject.toml requires, with the tools for tests, a line each; the arguments are names to leave out.

python -m tools.list_requirements torch triton
"""

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def list_requirements(left_out: list[str]) -> list[str]:
    project = tomllib.loads(PROJECT.read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    return [line for line in lines if re.split(r"[^\w-]", line, maxsplit=1)[0] not in left_out]


if __name__ == "__main__":
    print("\n".join(list_requirements(sys.argv[1:])))
