"""Models that llama.cpp's converter has written: the logits are those of the checkpoints that it read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kernels.cpu.library import unload_kernels
from runtime.gguf.conversion import read_config
from runtime.gguf.gguf_file import read_gguf
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.loading.converted_models import FOLDER, MODELS, PROMPT
from tests.scheduler_proc.computing.model.test_decoder import our_logits

LENS = (1, 4, 9, 12)


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_checkpoint(tmp_path: Path, name: str) -> None:
    unload_kernels()
    (tmp_path / "model.gguf").symlink_to(FOLDER / f"{name}.gguf")
    (tmp_path / "config.json").write_text(json.dumps(read_config(read_gguf(tmp_path))), encoding="utf-8")
    logits = our_logits(make_config(tmp_path), [PROMPT[:length] for length in LENS])
    expected = load_file(FOLDER / "logits.safetensors")[name][[length - 1 for length in LENS]]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * float(expected.std()))
