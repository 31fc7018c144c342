"""What the models of an engine take in memory, counted before any weight is read."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from messages.config.server import Config
from messages.engine_names import SCHEDULER, rank_name
from messages.errors import BootError
from runtime.machine import CGROUP, MEMORY_INFO, find_memory_limit
from scheduler_proc.computing.backends.backend import Backend
from scheduler_proc.computing.kv_cache.kv_tensors import GIB
from scheduler_proc.computing.kv_cache.page_sizes import PageSizes
from scheduler_proc.computing.loading.cache_plan import CachePlan
from scheduler_proc.computing.loading.family_loader import FamilyLoader
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.inputs import Role


class MemoryNeeds(NamedTuple):
    """What the models of an engine take. `step_bytes`: of the largest step; `None` if only running it shows that."""

    weight_bytes: int
    sizes: PageSizes
    step_bytes: int | None
    backend: Backend
    placement: Placement


def count_needs(
    config: Config, loaders: Sequence[FamilyLoader], target: Target, *, is_loaded: bool = False
) -> MemoryNeeds:
    """Counts what models take, without weights if these are loaded already."""
    descriptions = dict[Role, ModelDescription]()
    for loader in loaders:
        descriptions |= loader.descriptions
    backend, placement, limits = target.backend, target.placement, target.limits
    sizes = CachePlan(config, descriptions, placement, limits).sizes
    of_steps = [backend.step_bytes(model, placement, limits) for model in descriptions.values()]
    step_bytes = None if None in of_steps else sum(filter(None, of_steps))
    weight_bytes = 0 if is_loaded else sum(loader.count_bytes() for loader in loaders)
    return MemoryNeeds(weight_bytes, sizes, step_bytes, backend, placement)


def check_memory(config: Config, loaders: Sequence[FamilyLoader], target: Target) -> None:
    """Raises `BootError` if the stages do not fit into their memory with one request of full length.

    Those under the same limit share its memory: the machine's, or a control group's.
    """
    needs = count_needs(config, loaders, target, is_loaded=any(loader.has_shared_weights for loader in loaders))
    parts = needs.weight_bytes, needs.step_bytes or 0, needs.sizes.num_bytes(needs.sizes.pages_per_context)
    free_bytes = target.backend.free_bytes(config, target.placement)
    limit_id = zlib.crc32(f"{config.joined_rank} {find_memory_limit(MEMORY_INFO, CGROUP)[1]}".encode())
    gathered = target.pipeline.everyone.gather([limit_id, free_bytes, *parts], target.placement.device)
    for shared in dict.fromkeys(own for own, *_ in gathered):
        needs_of = {rank: of_rank for rank, (own, *of_rank) in enumerate(gathered) if own == shared}
        _check_limit(needs_of, is_remote=0 < min(needs_of) <= config.num_remote_stages)


def _check_limit(needs: Mapping[int, Sequence[int]], *, is_remote: bool) -> None:
    """`needs`, by rank: the free bytes, and what the rank needs for each purpose."""
    free_bytes, num_bytes = min(free for free, *_ in needs.values()), sum(sum(own) for _, *own in needs.values())
    if num_bytes <= free_bytes:
        return
    texts = [
        f"{rank_name(rank) if rank else SCHEDULER} {', '.join(f'{size / GIB:.2f}' for size in own)}"
        for rank, (_, *own) in needs.items()
    ]
    where = " on the machine that has joined for it" * is_remote
    raise BootError(
        f"the stages need {num_bytes / GIB:.2f} GiB, and {free_bytes / GIB:.2f} GiB are free{where}. In GiB, weights, "
        f"steps and the KV cache of one request: {'; '.join(texts)}. Lower --max-model-len, or take --quantization int8"
    )
