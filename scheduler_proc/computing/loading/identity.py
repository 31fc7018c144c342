"""What packed weights, K and V depend on: only a scheduler with the same identity can continue with them."""

import hashlib
import os
from pathlib import Path

import torch

from kernels.cpu.library import ISA_VARIABLE
from messages.config.server import Config
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement

CODE = Path(__file__).parents[3]
CODE_PACKAGES, CODE_SUFFIXES = ("scheduler_proc", "kernels", "messages"), (".py", ".c", ".h")


def identity_of(config: Config, model: ModelDescription, placement: Placement, *more: object) -> bytes:
    """Returns 32 bytes that are equal for two schedulers only if their pages are interchangeable.

    It is a digest of model, weights, formats, code, torch and the requested instruction set; files count by size and
    modification time. `more` has to be equal as well.
    """
    folders = [CODE / package for package in CODE_PACKAGES]
    code = [file for folder in folders for file in folder.rglob("*") if file.suffix in CODE_SUFFIXES]
    model_files = [file for file in Path(config.facts.model_dir).iterdir() if file.is_file()]
    stats = [(str(file), file.stat()) for file in sorted([*code, *model_files])]
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    flags, cache = config.model, config.cache
    formats = flags.load_format, flags.deterministic, cache.block_size, cache.kv_cache_dtype
    facts = (formats, model, placement, files, torch.__version__, os.environ.get(ISA_VARIABLE), *more)
    return hashlib.sha256(repr(facts).encode()).digest()


def memory_identity(config: Config, model: ModelDescription, placement: Placement) -> bytes:
    """Returns the identity of weights and pages in memory, which depends on all flags of the model."""
    return identity_of(config, model, placement, config.model, config.cache, config.facts)
