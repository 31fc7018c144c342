"""Makes the tiers below the KV cache that the flags request."""

import os
from pathlib import Path

from messages.config.server import CacheConfig
from messages.errors import BootError
from scheduler_proc.computing.kv_cache.kv_tensors import GIB
from scheduler_proc.computing.kv_cache.page_sizes import PAGES_TO_STATES
from scheduler_proc.computing.tiers.disk_tier import DiskTier
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.tiers.slot_file import SlotFile
from scheduler_proc.computing.tiers.tier import Tier
from scheduler_proc.computing.tiers.tiered_pages import TieredPages


def open_tiers(
    config: CacheConfig, copies: PageCopies, state_copies: PageCopies | None, identity: bytes, engine: int
) -> tuple[TieredPages | None, str]:
    """Returns the tiers of scheduler number `engine`, `None` without any, and a description of missing ones.

    A disk that cannot be used is reported there; it must not keep a server from serving. States of recurrent layers
    have a part of each tier.
    """
    folder, share = Path(config.kv_disk) / f"engine-{engine}", 1 / (1 + PAGES_TO_STATES)
    kinds = [(copies, 1.0, folder)]
    if state_copies is not None:
        kinds = [(state_copies, share, folder / "states"), (copies, 1 - share, folder)]
    store, missing = None, ""
    for own, part, place in kinds:
        tiers: list[Tier] = []
        if config.kv_offload_gb:
            file = SlotFile(os.memfd_create("kv-offload"), own.page_bytes)
            tiers.append(Tier("host", file, int(config.kv_offload_gb * part * GIB) // file.slot_bytes))
        if config.kv_disk:
            try:
                tiers.append(DiskTier(place, int(config.kv_disk_gb * part * GIB), identity, own.page_bytes))
            except BootError as error:
                missing = f"no KV cache on disk (--kv-disk): {error}"
        if not tiers:
            return None, missing
        store = TieredPages(own, tiers, store)
    return store, missing
