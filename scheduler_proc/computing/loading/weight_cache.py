"""Quantized weights of a checkpoint, kept in the user's cache directory for the next start.

There is one file per model and format. It is rewritten when the checkpoint changes.
"""

import hashlib
import json
import logging
import os
import time
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from kernels.cpu.build import cache_dir, can_keep, is_trusted
from kernels.cpu.huge_pages import empty_huge
from kernels.dispatch import is_on_cpu
from kernels.formats.registry import FORMATS
from messages import VERSION
from scheduler_proc.computing.loading.checkpoint import Checkpoint
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report

LAYOUT = 5
"""The version of the files' content, in particular of `PackedBlocks.stored`."""

LEAST_BYTES = 64 << 20
"""A smaller checkpoint is quantized as fast as a second file could be read."""

ABANDONED_S = 3600.0
"""An unfinished file of this age belongs to a process that was killed."""

log = logging.getLogger("sluice.weights")


def load_through_cache(
    shard: Shard, family: Family, checkpoint: Checkpoint, placement: Placement, report: Report, is_requested: bool
) -> Weights:
    """Returns the result of `load_weights`, from an earlier start's file if there is one; otherwise writes one.

    Weights are kept if a CPU has quantized them. Raises `BootError` as `load_weights` does, not because of the file.
    """
    files = sorted(checkpoint.paths)
    is_worth_it = placement.quantization is not None and is_on_cpu(placement.device)
    if not is_requested or not is_worth_it or sum(file.stat().st_size for file in files) < LEAST_BYTES:
        return load_weights(shard, family, checkpoint, placement, report)
    cache = WeightCache(shard, files, placement)
    weights = cache.read(report)
    if weights is None:
        weights = load_weights(shard, family, checkpoint, placement, report)
        report("keeping the quantized weights", None)
        cache.write(weights)
    return weights


class WeightCache:
    """The file of a model in one format, or of a rank's part of it. `path` need not exist."""

    def __init__(self, shard: Shard, files: list[Path], placement: Placement):
        of_rank = (shard.rank, shard.num_ranks, shard.layers) if shard.num_ranks > 1 or shard.layers else ()
        of_format = (placement.dtype_name, placement.quantization, *of_rank)
        self.path = cache_dir() / f"weights-{_digest(str(files[0].parent.resolve()), *of_format)}.safetensors"
        identity = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        self._key = _digest(LAYOUT, VERSION, shard.own, identity, *of_format)

    def read(self, report: Report) -> Weights | None:
        """Returns the weights; None without a usable file, which is logged."""
        if not is_trusted(self.path):
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("key") != self._key:
                    log.info("%s is of another state of the checkpoint: it is made anew", self.path)
                    return None
                formats = json.loads(metadata["formats"])
                weights: Weights = {}
                for num_done, (name, (format_name, numbers)) in enumerate(formats.items(), start=1):
                    # Copied: reading from huge pages is faster, and the file may be removed later.
                    tensor = file.get_tensor(name)
                    stored = empty_huge(tuple(tensor.shape), tensor.dtype).copy_(tensor)
                    weights[name] = FORMATS[format_name].restore(stored, tuple(numbers))
                    report("reading the quantized weights", num_done / len(formats))
                return weights
        except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            log.warning("%s cannot be read (%s): it is made anew", self.path, _first_line(error))
            return None

    def write(self, weights: Weights) -> None:
        """Writes the file, which appears atomically; logs a warning if that fails."""
        if not can_keep():
            log.warning("%s cannot be written: weights are quantized at each start", cache_dir())
            return
        formats = {name: (weight.format.name, weight.numbers) for name, weight in weights.items()}
        tensors = {name: weight.stored for name, weight in weights.items()}
        part = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self._remove_abandoned()
            save_file(tensors, part, {"key": self._key, "formats": json.dumps(formats)})
            part.replace(self.path)
            size_mb = self.path.stat().st_size / 1e6
            log.info("quantized weights are kept as %s (%.0f MB) for the next start", self.path, size_mb)
        except (SafetensorError, OSError, RuntimeError) as error:
            log.warning("%s cannot be written: weights are quantized at each start (%s)", part, _first_line(error))
            part.unlink(missing_ok=True)

    def _remove_abandoned(self) -> None:
        for part in self.path.parent.glob("weights-*.part"):
            if time.time() - part.stat().st_mtime > ABANDONED_S:
                part.unlink(missing_ok=True)


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
