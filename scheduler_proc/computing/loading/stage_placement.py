"""Places the layers of a model on the stages of a pipeline, by what the machine of each can do (decision 0161)."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import torch

from kernels.arguments.block_rows import Segment
from kernels.formats.weight_format import Weight
from messages.config.server import Config
from messages.engine_names import SCHEDULER, rank_name
from scheduler_proc.computing.loading.cache_plan import CachePlan
from scheduler_proc.computing.loading.formats import choose_format
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.loading.weights import Segments, make_zeros, max_bytes
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.model.stage_split import MEASURED, Machine, Sizes, layer_costs, split_layers
from scheduler_proc.computing.model.stages import model_parameters

MIN_WEIGHTS = 1 << 23
"""Smaller models are not measured: reading and multiplying weights is a small part of their time."""

MEASURED_BYTES, MEASURED_S = 32 << 20, 0.08
"""The bytes of weights that are multiplied in turns, more than a core's caches hold, and the seconds of each time."""

MANY_ROWS = 32
NUM_TIMES, NUM_HOPS = 2, 5
"""The best of these times counts: other programs disturb some."""

LEAST_SHARE = 0.8
"""Machines count as alike if each does at least this share of the fastest one's work."""

FASTEST = 64
"""The slowness of the fastest machine, if they are not alike."""

MACHINE_FILES = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/cgroup")
"""Processes that read the same in these share the memory that they find free."""

MACHINES = 1 << 31
"""Bounds the digests of what identifies the cores and the memory of a process."""

log = logging.getLogger("sluice.stages")


class Speed(NamedTuple):
    """What a process does in a second, with all its threads: weights read for one row, and multiplied for many."""

    read_bytes: int
    read: int
    multiplied: int


def place_layers(
    config: Config, model: ModelDescription, target: Target, find_segments: Callable[[], Segments | None]
) -> list[range]:
    """Returns the layers of each stage, the same on all ranks; `target.pipeline.split` then has them with the reason.

    The first start of a run decides for all of it: the weights of a stage outlive its process. Raises `BootError`.
    """
    pipeline, counts, num_stages = target.pipeline, config.run.stages, target.pipeline.place.num_stages
    if counts not in MEASURED:
        return split_layers(model, num_stages, counts)
    assert target.place.ranks_file is not None
    file, is_scheduler = target.place.ranks_file.with_name("split"), not target.place.rank
    text = file.read_text(encoding="ascii") if is_scheduler and file.exists() else ""
    found = _share_counts(text, target)
    if not found:
        stages, reason = _compare(config, model, target, find_segments)
        if is_scheduler:
            text = _keep(file, f"{counts}: {','.join(str(len(layers)) for layers in stages)} layers ({reason})")
        found = _share_counts(text, target)
    pipeline.split = text
    if text:
        log.info("--stages %s", text)
    return split_layers(model, num_stages, found)


def _share_counts(text: str, target: Target) -> str:
    """Returns the counts that the scheduler's text has, on all ranks; empty if it has none."""
    counts = [int(count) for count in text.partition(": ")[2].partition(" ")[0].split(",") if count]
    pipeline = target.pipeline
    found, *_ = pipeline.everyone.gather(counts or [0] * pipeline.place.num_stages, target.placement.device)
    return ",".join(map(str, found)) if any(found) else ""


def _keep(file: Path, text: str) -> str:
    """Returns the text of the run's first scheduler: engines share weights, so they have the same stages."""
    own = file.with_name(f"{file.name}.{os.getpid()}")
    own.write_text(text, encoding="ascii")
    try:
        file.hardlink_to(own)
    except FileExistsError:
        text = file.read_text(encoding="ascii")
    finally:
        own.unlink()
    return text


def _compare(
    config: Config, model: ModelDescription, target: Target, find_segments: Callable[[], Segments | None]
) -> tuple[list[range], str]:
    """Returns the best split, and why it is."""
    pipeline, costs, counts = target.pipeline, layer_costs(model), config.run.stages
    num_stages, num_ranks = pipeline.place.num_stages, pipeline.place.num_ranks
    segments = find_segments() or {}
    is_measured = sum(costs) >= MIN_WEIGHTS
    speed = measure(model, target, segments) if is_measured else Speed(1, 1, 1)
    memory = "".join(path.read_text() for path in MACHINE_FILES if path.exists())
    cores = f"{memory} {sorted(os.sched_getaffinity(0))} {torch.get_num_threads()}"
    machine = (crc32(cores.encode()) % MACHINES) * MACHINES + crc32(memory.encode()) % MACHINES
    own = [*speed, machine, target.backend.free_bytes(config, target.placement)]
    gathered = pipeline.everyone.gather(own, target.placement.device)
    # The scheduler's stage is the last one, and has the first ranks.
    by_stage = [gathered[number : number + num_ranks] for number in range(0, len(gathered), num_ranks)]
    by_stage = by_stage[1:] + by_stage[:1]
    speeds = [_find_speed(ranks, gathered) for ranks in by_stage]
    rates = [speed.read if counts == "one-stream" else speed.multiplied for speed in speeds]
    are_alike = min(rates) >= LEAST_SHARE * max(rates)
    machines = [
        Machine(1 if are_alike else round(FASTEST * max(rates) / rate), machine % MACHINES, free_bytes)
        for rate, ((*_, machine, free_bytes), *_) in zip(rates, by_stage, strict=True)
    ]
    stages = split_layers(model, num_stages, counts, machines, _count_sizes(config, model, target, segments))
    if not is_measured:
        return stages, "few weights: machines are not compared"
    names = [rank_name(stage * num_ranks) for stage in range(1, num_stages)] + [SCHEDULER]
    layer_ms = 1000 * sum(costs) / len(costs) / num_ranks
    texts = [
        f"{name} {layer_ms / speed.read:.2g} ms a layer, {speed.read_bytes / 1e9:.3g} GB/s, {MANY_ROWS} rows "
        f"{MANY_ROWS * layer_ms / speed.multiplied:.2g} ms"
        for name, speed in zip(names, speeds, strict=True)
    ]
    texts.append(f"hop {_time_hop(target):.2g} ms")
    return stages, f"machines are {'' if are_alike else 'not '}alike: {'; '.join(texts)}"


def _find_speed(ranks: Sequence[Sequence[int]], everyone: Sequence[Sequence[int]]) -> Speed:
    """Returns the speed of these ranks of a stage; ranks with the same cores are as fast as the fastest of them."""
    of_ranks = [[rank[:3] for rank in everyone if rank[3] == machine] for *_, machine, _ in ranks]
    return Speed(*map(min, zip(*(map(max, zip(*alike, strict=True)) for alike in of_ranks), strict=True)))


def measure(model: ModelDescription, target: Target, segments: Segments) -> Speed:
    """Measures this process with weights of the shape and format of the model's largest, for about 0.5 s."""
    placement, place = target.placement, target.pipeline.place
    found = [one for one in model_parameters(model, range(1)) if one.role in ("linear", "experts")]
    parameter = max(found, key=lambda one: prod(one.shape))
    part, forms = parameter.part(place.rank, place.num_ranks), segments.get(parameter.name, ())
    form = forms[0].form if forms else NUMBERS
    weight_format = choose_format(parameter, part, placement, [Segment(form, parameter.shape[0])])
    num_inputs = part.shape[1]
    shape = min(part.shape[0], MEASURED_BYTES // num_inputs // MANY_ROWS * MANY_ROWS), num_inputs
    weights, num_bytes = list[Weight](), 0
    while num_bytes < MEASURED_BYTES:
        weight = weight_format.allocate(shape, placement.dtype, placement.device)
        weight.set_rows(0, make_zeros(shape, weight_format, form))
        weights.append(weight.finish())
        num_bytes += weights[-1].stored.nbytes
    linears, num_weights = [weight.linear(None, None) for weight in weights], len(weights) * prod(shape)

    def multiply(num_rows: int) -> float:
        """Returns how many times a second all are multiplied."""
        x_TI = torch.ones(num_rows, num_inputs, dtype=placement.dtype, device=placement.device)
        begin_s, num_times = time.monotonic(), -1  # the first time does not count
        while num_times < 1 or time.monotonic() - begin_s < MEASURED_S:
            for linear in linears:
                linear(x_TI)
            num_times += 1
            if not num_times:
                begin_s = time.monotonic()
        return num_times / (time.monotonic() - begin_s)

    with torch.inference_mode():
        one, many = (max(multiply(num_rows) for _ in range(NUM_TIMES)) for num_rows in (1, MANY_ROWS))
    return Speed(round(one * num_bytes), round(one * num_weights), round(many * MANY_ROWS * num_weights))


def _time_hop(target: Target) -> float:
    """Returns about the milliseconds that a message takes from one stage to another."""
    times = list[float]()
    for _ in range(NUM_HOPS):
        begin_s = time.monotonic()
        target.pipeline.everyone.gather([0], target.placement.device)
        times.append(time.monotonic() - begin_s)
    return 1000 * min(times) / (target.pipeline.everyone.size - 1)


def _count_sizes(config: Config, model: ModelDescription, target: Target, segments: Segments) -> Sizes:
    """Counts the memory of each layer with one request of full length; all ranks of a stage have it together."""
    place, placement, limits = target.pipeline.place, target.placement, target.limits.of_model(config, model, "main")
    of_layers = list[int]()
    for index in range(len(model.layers)):
        shard = Shard(model, place.rank, place.num_ranks, range(index, index + 1))
        pages = CachePlan(config, {"main": shard.own}, placement, limits).sizes
        num_bytes = max_bytes(shard, placement, segments) + pages.num_bytes(pages.pages_per_context)
        of_layers.append(num_bytes * place.num_ranks)
    of_step = target.backend.step_bytes(Shard(model, place.rank, place.num_ranks).own, placement, limits) or 0
    return Sizes(of_layers, of_step * place.num_ranks)
