"""Makes the tiers below the KV cache that the flags request."""

import os
from pathlib import Path

import msgspec

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

    A disk that cannot be used is reported there; it must not keep a server from serving. With `state_copies`, states of
    recurrent layers have a part of each tier.
    """
    folder = Path(config.kv_disk) / f"engine-{engine}" if config.kv_disk else None
    try:
        if state_copies is None:
            return _make_tiers(config, copies, 1.0, identity, folder), ""
        share = 1 / (1 + PAGES_TO_STATES)
        states = _make_tiers(config, state_copies, share, identity, folder and folder / "states")
        return _make_tiers(config, copies, 1 - share, identity, folder, states), ""
    except BootError as error:
        without_disk = msgspec.structs.replace(config, kv_disk="")
        tiers, _ = open_tiers(without_disk, copies, state_copies, identity, engine)
        return tiers, f"no KV cache on disk (--kv-disk): {error}"


def _make_tiers(
    config: CacheConfig,
    copies: PageCopies,
    share: float,
    identity: bytes,
    folder: Path | None,
    states: TieredPages | None = None,
) -> TieredPages | None:
    """Returns tiers of this share of the flags' sizes. Raises `BootError` if the disk cannot be used."""
    tiers: list[Tier] = []
    if config.kv_offload_gb:
        file = SlotFile(os.memfd_create("kv-offload"), copies.page_bytes)
        tiers.append(Tier("host", file, int(config.kv_offload_gb * share * GIB) // file.slot_bytes))
    if folder is not None:
        tiers.append(DiskTier(folder, int(config.kv_disk_gb * share * GIB), identity, copies.page_bytes))
    return TieredPages(copies, tiers, states) if tiers else None
