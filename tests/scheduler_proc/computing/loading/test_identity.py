"""What packed weights and pages depend on."""

import runpy
import shutil
from pathlib import Path

import torch

from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading import identity
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import build_checkpoint, make_config


def test_a_process_keeps_the_identity_of_the_code_it_has_imported(tmp_path: Path) -> None:
    """An upgrade replaces files under a running server; a standby that takes over later computes with the old code."""
    build_checkpoint(tmp_path / "model", "llama-gqa-tied")
    config, hf_config = make_config(tmp_path / "model"), read_hf_config(tmp_path / "model")
    model = find_family(hf_config).describe(hf_config, 96)
    code, module = tmp_path / "kernels" / "attention.c", tmp_path / "scheduler_proc" / "computing" / "loading"
    code.parent.mkdir()
    module.mkdir(parents=True)
    code.write_text("old")
    copy = Path(shutil.copy(identity.__file__, module))

    def find_identity(imported: dict) -> bytes:
        return imported["identity_of"](config, model, Placement(torch.device("cpu"), torch.float32))

    running = runpy.run_path(str(copy))
    before = find_identity(running)
    code.write_text("newer")
    assert find_identity(running) == before
    assert find_identity(runpy.run_path(str(copy))) != before
