"""What the models of an engine take in memory, counted before any weight is read."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from messages.config.server import Config
from messages.engine_names import SCHEDULER, rank_name
from messages.errors import BootError
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
    """Raises `BootError` if a machine has too little memory for its stages with one request of full length."""
    needs = count_needs(config, loaders, target, is_loaded=any(loader.has_shared_weights for loader in loaders))
    parts = needs.weight_bytes, needs.step_bytes or 0, needs.sizes.num_bytes(needs.sizes.pages_per_context)
    free_bytes = target.backend.free_bytes(config, target.placement)
    gathered = target.pipeline.everyone.gather([free_bytes, *parts], target.placement.device)
    remote = [[rank] for rank in range(1, 1 + config.num_remote_stages)]
    for ranks in [[rank for rank in range(config.run.num_ranks) if [rank] not in remote], *remote]:
        _check_machine({rank: gathered[rank] for rank in ranks}, is_remote=ranks in remote)


def _check_machine(needs: Mapping[int, Sequence[int]], *, is_remote: bool) -> None:
    """`needs`, by rank: the free bytes of its machine, and what the rank needs for each purpose."""
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
