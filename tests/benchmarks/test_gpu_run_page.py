"""The commands of docs/speed/gpu-run.md, as copied: short, within ten minutes, of parts and tests that exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks import run_gpu
from benchmarks.gpu_parts import list_parts
from benchmarks.result_file import ROOT
from tests import gpu_tests

PAGE = (ROOT / "docs/speed/gpu-run.md").read_text(encoding="utf-8")
COMMANDS = [block for block in re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "tar " in block]
MAX_CHARS = 2000
MAX_BUDGET_S = 560
"""Installing, parts that end at their limit, and packing take the rest of ten minutes."""

PYTHON = """#!/bin/sh
echo "$SLUICE_COMMIT|$*" >> $ASKED
case "$*" in *test*) exit 1;; esac
"""


def arguments_of(block: str, target: str) -> list[list[str]]:
    return [shlex.split(found) for found in re.findall(rf'make -s {target} ARGS="([^"]*)"', block)]


def test_the_page_has_its_commands() -> None:
    packed = [re.findall(r"gpu-(\w)\.tgz", block) for block in COMMANDS]
    assert packed == [["A"], ["B"], ["B"], ["C"], ["D"], ["E"], ["F"], ["G"]]


@pytest.mark.parametrize("block", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_is_short_and_takes_ten_minutes_at_most(block: str) -> None:
    assert len(block) < MAX_CHARS
    benchmarks = [run_gpu.make_parser().parse_args(each) for each in arguments_of(block, "bench-gpu")]
    tests = [gpu_tests.make_parser().parse_args(each) for each in arguments_of(block, "test-gpu")]
    assert 0 < sum(options.budget_s for options in benchmarks + tests) <= MAX_BUDGET_S
    assert {options.results for options in benchmarks + tests} == {Path("build/gpu")}
    parts = [part.name for part in list_parts()]
    files = [run.name for phase in gpu_tests.list_phases() for run in phase]
    for options, names in [(each, parts) for each in benchmarks] + [(each, files) for each in tests]:
        for prefix in options.only or ():
            assert any(name.startswith(prefix) for name in names), f"nothing is named {prefix}…"


@pytest.mark.parametrize("block", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_packs_what_there_is_though_its_tests_fail(block: str, tmp_path: Path) -> None:
    """As one line to a shell, with a stand-in for Python, in a tree without anything but the Makefile."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python"
    python.write_text(PYTHON, encoding="ascii")
    python.chmod(0o755)
    (tmp_path / "build/gpu").mkdir(parents=True)
    (tmp_path / "build/gpu/gpu.json").write_text(json.dumps({"of": "an earlier part"}), encoding="ascii")
    environment = os.environ | {"PYTHON": str(python), "OUT": str(tmp_path / "out"), "ASKED": str(tmp_path / "asked")}
    environment |= {"SLUICE_COMMIT": "abc123", "MAKEFLAGS": ""}
    subprocess.run(["bash", "-c", block], cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=True)
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert asked[0] == "abc123|-m tools.gpu_wheels install"
    assert len(asked) == block.count("make -s")
    assert "make -s gpu-install || exit 1\n" in block
    assert all(line.startswith("abc123|") for line in asked)
    (packed,) = (tmp_path / "out").iterdir()
    with tarfile.open(packed) as archive:
        assert "gpu/gpu.json" in archive.getnames()
