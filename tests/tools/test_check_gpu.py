"""The check of a GPU machine, on one without a GPU and with a stand-in for the driver."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tools import check_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "facts" / "machine.json"
    assert check_gpu.main(["--json", str(file)]) == 1
    facts = json.loads(file.read_text(encoding="utf-8"))
    assert facts["complaints"][-1] == "torch finds no CUDA device"
    assert facts["torch"] == torch.__version__
    assert facts["tf32"] is False
    assert "check_gpu: torch finds no CUDA device" in capsys.readouterr().err


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpu, "LIBRARIES", ("json", "no_such_library"))
    monkeypatch.setattr(check_gpu, "COMPILERS", ("no-such-compiler",))
    complaints = check_gpu.check()[1]
    assert complaints[0].startswith("no_such_library cannot be imported")
    assert "there is no C compiler" in complaints[1]


def test_the_driver_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'P0, 1980 MHz'\necho 'P8, 300 MHz'\n", encoding="ascii")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert shutil.which("nvidia-smi") == str(driver)
    assert check_gpu.ask_driver(("pstate", "clocks.sm")) == {"pstate": "P0", "clocks.sm": "1980 MHz"}
