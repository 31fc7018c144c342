"""The KV caches of an engine's models: all have the same pages, in which only the main model has more than K and V."""

import logging
from collections.abc import Mapping

from messages.config.server import Config
from scheduler_proc.computing.device import Device
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.kv_cache.kv_tensors import GIB, KVTensors, allocate_cache, choose_num_pages
from scheduler_proc.computing.kv_cache.page_sizes import PageSizes, page_bytes, size_pages
from scheduler_proc.computing.loading.identity import identity_of
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.runner import StatePool
from scheduler_proc.computing.step.features.windows import find_window
from scheduler_proc.computing.step.inputs import Role
from scheduler_proc.computing.step.shapes import StepLimits
from scheduler_proc.computing.tiers.open_tiers import open_tiers
from scheduler_proc.computing.tiers.page_copies import PageCopies
from scheduler_proc.computing.tiers.tiered_pages import TieredPages

log = logging.getLogger("sluice.kv_cache")


class CachePlan:
    """`config` and `limits` are those of the main model."""

    def __init__(
        self, config: Config, models: Mapping[Role, ModelDescription], placement: Placement, limits: StepLimits
    ):
        self._config, self._placement, self._page_size = config, placement, config.cache.block_size
        self._main = models["main"]
        self._others: dict[Role, ModelDescription] = {role: model for role, model in models.items() if role != "main"}
        window = find_window(config, self._main)
        others_bytes = sum(page_bytes(model, self._page_size, placement) for model in self._others.values())
        self.sizes: PageSizes = size_pages(config, self._main, placement, limits, window, others_bytes)

    @property
    def has_only_pages(self) -> bool:
        """True if pages have all that is kept of sequences: there are no window pages and no states."""
        return self.sizes.window is None and not self.sizes.state_bytes

    def choose_num_pages(self, free_bytes: int) -> int:
        return choose_num_pages(self._config, self.sizes, free_bytes)

    def allocate(self, num_pages: int, memory: KVMemory | None = None) -> dict[Role, KVTensors]:
        """Returns the caches, that of the main model in `memory` if given, and with the same hidden states."""
        main = allocate_cache(
            self._main,
            num_pages,
            self._page_size,
            self._placement,
            memory,
            self.sizes.count_window_pages(num_pages),
            self.sizes.count_states(num_pages),
        )
        caches: dict[Role, KVTensors] = {"main": main}
        for role, model in self._others.items():
            caches[role] = allocate_cache(model, num_pages, self._page_size, self._placement)
            caches[role].hidden = main.hidden
        return caches

    def windows(self, num_pages: int) -> tuple[int, int] | None:
        """Returns the window of the layers with window pages, and the number of these."""
        return None if self.sizes.window is None else (self.sizes.window, self.sizes.count_window_pages(num_pages))

    def states(self, num_pages: int) -> StatePool | None:
        num_slots = self.sizes.count_states(num_pages)
        return StatePool(num_slots, self.sizes.pages_per_state) if num_slots else None

    def open_tiers(self, cache: KVTensors, device: Device, engine: int) -> tuple[TieredPages | None, str]:
        """Returns the tiers below the main model's cache, and what is missing of them."""
        options = self._config.cache
        if not (options.kv_disk or options.kv_offload_gb):
            return None, ""
        copies = PageCopies(cache.tensors, cache.num_pages, device, device.will_write)
        states = self.states(cache.num_pages)
        state_copies = None if states is None else PageCopies(cache.state_tensors, states.num_slots, device)
        identity = identity_of(self._config, self._main, self._placement)
        return open_tiers(options, copies, state_copies, identity, engine)

    def log(self, num_pages: int) -> None:
        sizes, dtype = self.sizes, self._placement.texts["kv_cache_dtype"]
        log.info(
            "KV cache: %d tokens in %s, %.2f GiB", num_pages * self._page_size, dtype, sizes.num_bytes(num_pages) / GIB
        )
        if num_states := sizes.count_states(num_pages):
            state_mib, state_gib = sizes.state_bytes / 2**20, num_states * sizes.state_bytes / GIB
            log.info("of this memory, %.2f GiB are for %d states of %.2f MiB", state_gib, num_states, state_mib)
        if sizes.window is not None:
            num_pages = sizes.count_window_pages(num_pages)
            log.info(
                "of these, layers with a window have %d tokens, %.2f GiB; a request uses the last %d",
                num_pages * self._page_size,
                num_pages * sizes.window_bytes / GIB,
                sizes.window,
            )
