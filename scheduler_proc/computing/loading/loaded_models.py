"""The models of an engine with their weights, from which its runners are made."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from scheduler_proc.computing.backends.backend import RunnerFactory
from scheduler_proc.computing.kv_cache.kv_memory import KVMemory
from scheduler_proc.computing.kv_cache.page_sums import find_lost_pages
from scheduler_proc.computing.loading.cache_plan import CachePlan
from scheduler_proc.computing.loading.identity import memory_identity
from scheduler_proc.computing.loading.roles import Models
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.runner import Publish, Runner
from scheduler_proc.computing.step.inputs import Role

Factories = dict[Role, RunnerFactory]


@dataclasses.dataclass(frozen=True)
class LoadedModels:
    models: Models
    target: Target
    is_warm: bool = False
    """At least one step has been run with each."""

    def make_runner(self, report: Report, kv_file: Path | None = None, publish: Publish | None = None) -> Runner:
        """Returns the main model's runner, ready for its first step; it calls `publish` before each step.

        If the backend keeps memory, the KV cache is in `kv_file`, possibly with a predecessor's pages; with several
        ranks only if it has nothing else than pages. Raises `BootError` if there is not enough memory.
        """
        main, target, memory = self.models["main"], self.target, None
        target.backend.bind(main.config, target.placement, target.place)
        factories, plan, everyone = self._make_factories(report), self._plan_caches(), target.pipeline.everyone
        if kv_file is not None and target.backend.keeps_memory and (everyone.size == 1 or plan.has_only_pages):
            memory = KVMemory(kv_file, memory_identity(main.config, main.decoder.model, target.placement))
        num_pages = self._count_pages(factories, plan, memory)
        report("allocating the KV cache", None)
        plan.log(num_pages)
        caches, runners, degraded = plan.allocate(num_pages, memory), dict[Role, Runner](), list[str]()
        if memory is not None and everyone.size > 1:
            memory.lost_pages = find_lost_pages(memory, main.config.cache.block_size, everyone)
        for role, factory in factories.items():
            runners[role] = factory.make_runner(caches[role])
            if not self.is_warm:
                report("warming up", None)
                degraded.append(factory.warm_up(runners[role], caches[role]))
            factory.populate(caches[role], report, is_file=memory is not None and role == "main")
        target.pipeline.begin_service()
        split = target.pipeline.split
        store, missing = plan.open_tiers(caches["main"], factories["main"].device, target.place.engine)
        return _join(
            runners,
            degraded="; ".join(filter(None, [*degraded, missing])),
            placement=main.placement.texts | ({"stages": split} if split else {}),
            page_memory=memory,
            page_store=store,
            publish=publish,
            windows=plan.windows(num_pages),
            states=plan.states(num_pages),
        )

    def warmed_up(self, report: Report) -> "LoadedModels":
        """Returns the models after a step of each in a small cache of its own, on one thread."""
        report("warming up", None)
        torch.set_num_threads(1)
        caches = self._plan_caches().allocate(self.target.limits.num_pages)
        for role, factory in self._make_factories(report).items():
            factory.warm_up(factory.make_runner(caches[role]), caches[role])
        return dataclasses.replace(self, is_warm=True)

    def _make_factories(self, report: Report) -> Factories:
        factories: Factories = {}
        for role, model in self.models.items():
            factories[role] = self.target.backend.make_factory(model, report, factories.get("main"))
        return factories

    def _plan_caches(self) -> CachePlan:
        descriptions: dict[Role, ModelDescription] = {role: each.decoder.model for role, each in self.models.items()}
        return CachePlan(self.models["main"].config, descriptions, self.target.placement, self.target.limits)

    def _count_pages(self, factories: Factories, plan: CachePlan, memory: KVMemory | None) -> int:
        """Returns the pages of the KV cache: as many as in `memory`, or as the flags and the free memory allow."""

        def make_runner(num_pages: int) -> Runner:
            caches = plan.allocate(num_pages)
            return _join({role: factory.make_runner(caches[role]) for role, factory in factories.items()})

        if memory is not None and memory.num_pages:
            num_pages = memory.num_pages
        else:
            least = self.target.limits.num_pages
            page_bytes = -(-plan.sizes.num_bytes(least) // least)
            num_pages = plan.choose_num_pages(factories["main"].measure_cache_bytes(make_runner, page_bytes))
        (num_pages,) = self.target.pipeline.everyone.smallest([num_pages], self.target.placement.device)
        if memory is not None and memory.num_pages != num_pages:
            memory.clear()
        return num_pages


def _join(runners: Mapping[Role, Runner], **parts: Any) -> Runner:
    """Returns the main model's runner with these fields and the runner that drafts for it, if there is one.

    It has the same forward passes, whose captures it keeps.
    """
    drafting = runners.get("draft") or runners.get("mtp")
    return dataclasses.replace(runners["main"], draft_runner=drafting, **parts)
