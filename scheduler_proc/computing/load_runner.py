"""Loads the models of an engine, and returns its runner, ready for the first step."""

from pathlib import Path

from messages.config.server import Config
from runtime.model_files import refused_errors
from scheduler_proc.computing.backends.backend import ModelParts, Place
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.loading.family_loader import FamilyLoader
from scheduler_proc.computing.loading.loaded_models import LoadedModels
from scheduler_proc.computing.loading.memory_needs import MemoryNeeds, check_memory, count_needs
from scheduler_proc.computing.loading.roles import find_configs, warn_if_large
from scheduler_proc.computing.loading.target import find_target, open_target
from scheduler_proc.computing.loading.transformers_loader import TransformersLoader
from scheduler_proc.computing.model.families.registry import needs_transformers
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.ring_group import Neighbours
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.step.inputs import Role


def load_runner(config: Config, report: Report, kv_file: Path | None = None) -> Runner:
    """Returns a runner that is ready for its first step; calls `report` with each phase of loading.

    `kv_file` is in memory and outlives this process; it is used on a CPU. Raises `BootError` for a model that is not
    supported, weights that do not fit it, and memory, cores or GPUs that do not suffice.
    """
    return load_models(config, report).make_runner(report, kv_file)


def load_models(
    config: Config,
    report: Report,
    engine: int = 1,
    weights_file: Path | None = None,
    rank: int = 0,
    ranks_file: Path | None = None,
    neighbours: Neighbours | None = None,
) -> LoadedModels:
    """Returns the models; on a CPU the weights of the main one are in `weights_file`, if given.

    The ranks of an engine load together, each its part of the weights or its layers, and meet through `ranks_file`, or
    have `neighbours` if some are on other machines.
    Raises `BootError`, also for a model that they cannot divide.
    """
    models = _load(config, report, Place(engine, rank, ranks_file, weights_file, neighbours), is_shared_only=False)
    assert models is not None
    return models


def find_shared_models(config: Config, report: Report, engine: int, weights_file: Path | None) -> LoadedModels | None:
    """Returns the models, warmed up, if all their weights are already in `weights_file`: they then take little memory.

    It needs no device, so a successor can do it while its predecessor runs.
    """
    if weights_file is None or not find_backend(config.model).keeps_memory:
        return None
    models = _load(config, report, Place(engine, weights_file=weights_file), is_shared_only=True)
    return None if models is None else models.warmed_up(report)


def _load(config: Config, report: Report, place: Place, *, is_shared_only: bool) -> LoadedModels | None:
    with refused_errors(config.facts.model_dir):
        report("reading the model's configuration", None)
        target = open_target(config, find_backend(config.model), place, report)
        models, loaders = dict[Role, ModelParts](), list[FamilyLoader | TransformersLoader]()
        for role, own in find_configs(config, target.pipeline.place).items():
            loader_of = TransformersLoader if needs_transformers(own) else FamilyLoader
            loaders.append(loader_of(role, own, target))
        if target.pipeline.place.num_stages > 1:
            check_memory(config, [loader for loader in loaders if isinstance(loader, FamilyLoader)], target)
        for loader in loaders:
            loaded = loader.load(report, is_shared_only=is_shared_only)
            if loaded is None:
                return None
            models |= loaded
    warn_if_large(models)
    return LoadedModels(models, target)


def measure_models(config: Config) -> MemoryNeeds:
    """Finds the bytes of weights, pages and steps by the headers of the models' files; no weight is read.

    Raises `BootError` as loading would.
    """
    with refused_errors(config.facts.model_dir):
        target = find_target(config, find_backend(config.model), Place(1), lambda *_: None)
        loaders = [FamilyLoader(role, own, target) for role, own in find_configs(config).items()]
        return count_needs(config, loaders, target)
