"""Where the models of an engine are loaded to."""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from kernels.operations.packed_linear import has_rounding_kernel
from messages.config.pooling import choose_dtype
from messages.config.scheduling import CPU_STEP_TOKENS
from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.backends.backend import Backend, Place
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache.page_sizes import pages_per_context
from scheduler_proc.computing.parallel import Meeting
from scheduler_proc.computing.pipeline import WHOLE, Pipeline, find_place
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.ring_group import RingGroup
from scheduler_proc.computing.step.shapes import StepLimits, limit_steps


class Target(NamedTuple):
    """What all models of an engine have in common. `limits`: those of their steps, without what only some have."""

    backend: Backend
    place: Place
    placement: Placement
    limits: StepLimits
    pipeline: Pipeline = WHOLE


def find_target(config: Config, backend: Backend, place: Place, report: Report) -> Target:
    """Loads the kernels, on which formats depend; returns the target for a rank that computes alone."""
    ranks = config.local_ranks
    number = (place.engine - 1) * len(ranks) + ranks.index(place.rank) + 1
    flags = replace(config.model, dtype=choose_dtype(config.model.dtype, config.facts.pooling))
    backend.load_kernels(config.model, report)
    placement = backend.find_placement(flags, config.cache, read_hf_config(Path(config.facts.model_dir)), number)
    is_rounded = flags.dtype != config.model.dtype and placement.quantization is None
    if is_rounded and has_rounding_kernel(placement.device):
        placement = dataclasses.replace(placement, products=backend.product_dtype(placement))  # decision 0168
    has_host_experts = config.model.cpu_experts != "none"
    default_tokens = CPU_STEP_TOKENS if has_host_experts else backend.default_step_tokens
    limits = limit_steps(config, default_tokens, pages_per_context(config))
    return Target(backend, place, placement, limits)


def open_target(config: Config, backend: Backend, place: Place, report: Report) -> Target:
    """Gives this process its device, and connects it with the other ranks. Raises `BootError`."""
    target, run = find_target(config, backend, place, report), config.run
    backend.bind(config, target.placement, place)
    if run.num_ranks == 1:
        return target
    own = find_place(place.rank, run.tensor_parallel, run.pipeline_parallel)
    if place.neighbours is not None:
        return target._replace(pipeline=Pipeline(own, RingGroup(place.rank, run.num_ranks, place.neighbours)))
    if place.ranks_file is None:
        flag = "--tensor-parallel" if own.num_stages == 1 else "--pipeline-parallel"
        raise BootError(f"{flag} {max(own.num_stages, own.num_ranks)}: only a server has several ranks; leave it at 1")
    report("waiting for the other ranks", None)
    meeting = Meeting(place.ranks_file, place.rank, run.num_ranks, run.boot_timeout_s)
    everyone = within = backend.join_ranks(meeting, "engine", place.rank, run.num_ranks)
    if own.num_stages > 1:
        within = backend.join_ranks(meeting, f"stage{own.stage}", own.rank, own.num_ranks)
    return target._replace(pipeline=Pipeline(own, everyone, within))
