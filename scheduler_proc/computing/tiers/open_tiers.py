"""Makes the tiers below the KV cache that the flags request."""

import os
from pathlib import Path

from messages.config.server import CacheConfig
from messages.errors import BootError
from scheduler_proc.computing.kv_cache.kv_tensors import GIB
from scheduler_proc.computing.tiers.disk_tier import DiskTier
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.tiers.slot_file import SlotFile
from scheduler_proc.computing.tiers.tier import Tier
from scheduler_proc.computing.tiers.tiered_pages import TieredPages


def open_tiers(config: CacheConfig, copies: PageCopies, identity: bytes, engine: int) -> tuple[TieredPages | None, str]:
    """Returns the tiers of scheduler number `engine`, `None` without any, and a description of missing ones.

    A disk that cannot be used is reported there; it must not keep a server from serving.
    """
    tiers: list[Tier] = []
    missing = ""
    if config.kv_offload_gb:
        file = SlotFile(os.memfd_create("kv-offload"), copies.page_bytes)
        tiers.append(Tier("host", file, int(config.kv_offload_gb * GIB) // file.slot_bytes))
    if config.kv_disk:
        folder = Path(config.kv_disk) / f"engine-{engine}"
        try:
            tiers.append(DiskTier(folder, int(config.kv_disk_gb * GIB), identity, copies.page_bytes))
        except BootError as error:
            missing = f"no KV cache on disk (--kv-disk): {error}"
    return (TieredPages(copies, tiers) if tiers else None), missing
