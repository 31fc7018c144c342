"""What a model needs, found out from its files in a process of its own: configuration, weights, KV cache."""

import logging
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from extras.models.config import ModelEntry, ModelsConfig
from extras.models.messages import Description
from extras.models.model_keys import model_flags
from messages.errors import SluiceError, cut
from runtime.run_dir import RunDir
from supervisor.console import Console
from supervisor.flags import parse_flags
from supervisor.model.gguf.model_directory import move_temporary
from supervisor.model.weight_bytes import find_weight_bytes
from supervisor.run import build_config

FILE_NAME = "description.json"
CACHE_SHARE = 8
"""Without flags, the KV cache of a model takes at most one in this number of the bytes of all models, unless a request
of full length needs more."""

LARGEST_BYTES = 1 << 60
MAX_ERROR_CHARS = 2000

log = logging.getLogger("sluice.models")


def write_description(section: ModelsConfig, entry: ModelEntry, directory: Path, *, may_fetch: bool) -> None:
    """Writes the model's `Config` and `Description` to `directory`.

    Without `may_fetch` nothing is written about a model that only the hub has.
    """
    if not may_fetch:
        os.environ["HF_HUB_OFFLINE"] = "1"  # for the process that looks it up
    stamp = read_stamp(entry)
    try:
        description = replace(_describe(section, entry, RunDir(directory)), stamp=stamp)
    except SluiceError as error:
        if entry.is_on_hub and not may_fetch:
            return
        description = Description(error=str(error)[:MAX_ERROR_CHARS])
    except MemoryError:
        description = Description(error="its files cannot be read: that takes too much memory")
    except Exception as error:
        log.exception("the files of %s cannot be read", entry.name)
        description = Description(error=f"its files cannot be read: {type(error).__name__}: {cut(str(error))}")
    file = directory / FILE_NAME
    file.with_suffix(".part").write_bytes(msgspec.json.encode(description))
    file.with_suffix(".part").rename(file)


def read_stamp(entry: ModelEntry) -> int:
    """Returns a number for the present files of a model; 0 for a model of the hub, or if there are none."""
    path = entry.path
    try:
        stats = [file.stat() for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    except OSError:
        return 0
    return 0 if entry.is_on_hub else hash(tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats))


def read_description(directory: Path) -> Description | None:
    """Returns what `write_description` has written, if anything."""
    try:
        return msgspec.json.decode((directory / FILE_NAME).read_bytes(), type=Description)
    except FileNotFoundError:
        return None


def _describe(section: ModelsConfig, entry: ModelEntry, files: RunDir) -> Description:
    # Imported late: it needs torch.
    from scheduler_proc.computing.kv_cache.kv_tensors import GIB, MAX_CPU_CACHE_BYTES, choose_num_pages
    from scheduler_proc.computing.load_runner import measure_models
    from scheduler_proc.computing.model.families.registry import needs_transformers
    from scheduler_proc.computing.vision.load_tower import measure_images

    config = build_config(parse_flags(model_flags(section.shared_flags, entry)), Console())
    config = replace(config, facts=move_temporary(config.facts, files.path))
    cache, num_engines = config.cache, max(1, config.run.data_parallel)
    is_sized = cache.kv_cache_memory_gb is not None or cache.num_pages is not None
    share = min(int((section.models_memory_gb or 0.0) * GIB) // CACHE_SHARE, MAX_CPU_CACHE_BYTES)
    if needs_transformers(config):
        weight_bytes, num_bytes = find_weight_bytes(config), int((cache.kv_cache_memory_gb or 0.0) * GIB) or share
        cache = cache if is_sized else replace(cache, kv_cache_memory_gb=share / GIB)
    else:
        weight_bytes, sizes, *_ = measure_models(config)
        limit = LARGEST_BYTES if is_sized else max(share, sizes.num_bytes(sizes.pages_per_context))
        cache = replace(cache, num_pages=choose_num_pages(config, sizes, limit))
        num_bytes = sizes.num_bytes(cache.num_pages or 0)
    images = measure_images(config)
    files.write_config(replace(config, cache=cache))
    is_shared = config.model.share_weights and config.run.num_ranks == 1
    weight_bytes *= 1 if is_shared else num_engines
    cache_bytes = (num_bytes + images.cache_bytes) * num_engines
    return Description(str(files.config_file), weight_bytes + images.tower_bytes, cache_bytes)
