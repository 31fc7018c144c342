"""Compares the stages of engines, for people (`--pipeline-parallel`)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from messages.control.processes import worker_number

MIN_COMPARED_S = 1.0
"""Before the slowest stage has computed this long, its first steps decide, which are captured."""


class Stage(Protocol):
    """A process; those of stages have `stage`, `layers` and `computing_s` among their gauges."""

    @property
    def gauges(self) -> Mapping[str, float]: ...

    @property
    def placement(self) -> Mapping[str, str]: ...


def stage_lines(processes: Mapping[str, Stage]) -> Iterator[str]:
    """Yields lines for each engine with stages: how long each computes, which layer to move, why they were divided so.

    With `--stages one-stream` the slowest stage is not to become faster.
    """
    places = {
        (worker_number(name), one.gauges["stage"]): name for name, one in processes.items() if "stage" in one.gauges
    }
    for engine, keys in groupby(sorted(places), key=lambda key: key[0]):
        names = [places[key] for key in keys]  # the first rank of each stage, in the order of the layers
        found = [(name, processes[name].gauges["layers"], processes[name].gauges["computing_s"]) for name in names]
        total_s, split = sum(seconds for *_, seconds in found), processes[names[-1]].placement.get("stages", "")
        if total_s:
            shares = [f"{name} {layers:g} layers {seconds / total_s:.0%}" for name, layers, seconds in found]
            advice = "" if split.startswith("one-stream") else _advise(found)
            yield f"stages of engine {engine}, by their part of the computing: {', '.join(shares)}{advice}"
        if split:
            yield f"stages of engine {engine}, as divided at the start by --stages {split}"


def _advise(stages: Sequence[tuple[str, float, float]]) -> str:
    """Returns the flag that moves a layer from the slowest stage to the fastest one, if the slowest is then faster."""
    (slowest, layers, seconds) = max(stages, key=lambda stage: stage[2])
    (fastest, others, least_s) = min(stages, key=lambda stage: stage[2])
    if seconds < MIN_COMPARED_S or layers < 2 or least_s + least_s / others >= seconds:
        return ""
    changes = {slowest: -1, fastest: 1}
    counts = ",".join(f"{count + changes.get(name, 0):g}" for name, count, _ in stages)
    return f"; {slowest} is the slowest: try --stages {counts}"
