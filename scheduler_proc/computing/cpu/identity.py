"""Tells whether a scheduler may use what another one has left in memory."""

import hashlib
import os
from pathlib import Path

import torch

from kernels.cpu.library import ISA_VARIABLE
from messages.config import Config
from scheduler_proc.computing.loading.placement import Placement
from scheduler_proc.computing.model.decoder_config import DecoderConfig

CODE = Path(__file__).parents[3]
CODE_PACKAGES, CODE_SUFFIXES = ("scheduler_proc", "kernels", "messages"), (".py", ".c", ".h")


def identity_of(config: Config, decoder: DecoderConfig, placement: Placement) -> bytes:
    """Returns 32 bytes that only a scheduler has whose packed weights, K and V would be the same.

    They are of flags, model, weights, code, torch and the instruction set that was asked for.
    """
    folders = [CODE / package for package in CODE_PACKAGES]
    code = [file for folder in folders for file in folder.rglob("*") if file.suffix in CODE_SUFFIXES]
    model = [file for file in Path(config.facts.model_dir).iterdir() if file.is_file()]
    stats = [(str(file), file.stat()) for file in sorted([*code, *model])]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    isa = os.environ.get(ISA_VARIABLE)
    facts = (config.model, config.cache, config.facts, decoder, placement, files, torch.__version__, isa)
    return hashlib.sha256(repr(facts).encode()).digest()
