"""What packed weights, K and V depend on: only a scheduler with the same identity can continue with them."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import torch

from kernels.cpu.library import ISA_VARIABLE
from messages.config.server import Config
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement

CODE = Path(__file__).parents[3]
CODE_PACKAGES, CODE_SUFFIXES = ("scheduler_proc", "kernels", "messages"), (".py", ".c", ".h")


def _stat_files(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    stats = [(str(file), file.stat()) for file in sorted(files)]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


CODE_FILES = _stat_files(
    file for package in CODE_PACKAGES for file in (CODE / package).rglob("*") if file.suffix in CODE_SUFFIXES
)
"""The code of this process: an upgrade may replace the files while it runs."""


def identity_of(config: Config, model: ModelDescription, placement: Placement, *more: object) -> bytes:
    """Returns 32 bytes that are equal for two schedulers only if their pages are interchangeable.

    It is a digest of model, weights, formats, code, torch and the requested instruction set; files count by size and
    modification time. `more` has to be equal as well.
    """
    flags, cache = config.model, config.cache
    files = CODE_FILES, _stat_files(file for file in Path(config.facts.model_dir).iterdir() if file.is_file())
    formats = flags.load_format, flags.deterministic, cache.block_size, cache.kv_cache_dtype
    facts = (formats, model, placement, files, torch.__version__, os.environ.get(ISA_VARIABLE), *more)
    return hashlib.sha256(repr(facts).encode()).digest()


def memory_identity(config: Config, model: ModelDescription, placement: Placement) -> bytes:
    """Returns the identity of weights and pages in memory, which depends on all flags of the model."""
    return identity_of(config, model, placement, config.model, config.cache, config.facts)
