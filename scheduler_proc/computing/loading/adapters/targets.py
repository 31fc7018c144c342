"""Which of our parameters an adapter may update, derived from the sources of a model's weights.

A module of the base model is named as its weight in a checkpoint, without `.weight`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from scheduler_proc.computing.model.adapters import LinearPlan
from scheduler_proc.computing.model.blocks.embedding import TOKENS
from scheduler_proc.computing.model.blocks.head import HEAD
from scheduler_proc.computing.model.description import MTP, ModelDescription
from scheduler_proc.computing.model.families.family import HEAD_NAME, Family, Source, StoredSource
from scheduler_proc.computing.model.gated_delta_description import GatedDeltaDescription
from scheduler_proc.computing.model.parameters import Parameter
from scheduler_proc.computing.model.stages import model_parameters

WEIGHT = ".weight"
REFUSED = {".experts_in.weight": "experts", ".experts_out.weight": "experts", ".router.weight": "the router of experts"}
REFUSED |= {
    f".latent_{name}.weight": f"the {name} that latent attention makes of latents" for name in ("keys", "values")
}
"""By the end of our names."""


@dataclass(frozen=True)
class SegmentSource:
    """Outputs of a module that are a segment of our linear layer: the rows of `sources`, one after another."""

    linear: str
    segment: int
    sources: Sequence[StoredSource]


@dataclass
class Targets:
    """By module, the segments that its update belongs to; the modules of the embedding and the head; and those that no
    adapter may update, with the reason."""

    model: ModelDescription
    prefix: str
    """See `Family`."""
    embedding: str
    head: str
    linears: dict[str, LinearPlan] = field(default_factory=dict)
    """By our name."""
    segments: dict[str, list[SegmentSource]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> str | None:
        """Returns the module of this name in an adapter, which may be one of the bare decoder; `None` if it is none."""
        known = self.segments.keys() | self.refused.keys() | {self.embedding, self.head}
        return next((module for module in (name, self.prefix + name) if module in known), None)

    def sizes(self, module: str) -> tuple[int, int]:
        """Returns the module's inputs and outputs, as in the checkpoint."""
        first = self.segments[module][0]
        (source, _, stack), num_inputs = first.sources[0], self.linears[first.linear].num_inputs
        return num_inputs, source.shape[0] if stack is None else stack.shape[0] * stack.shape[1]


def find_targets(family: Family, model: ModelDescription) -> Targets:
    """Returns what adapters of this model may update. A fused linear has a segment for each module of a checkpoint."""
    parameters = {parameter.name: parameter for parameter in model_parameters(model)}
    sources = [
        source
        for source in family.list_sources(model)
        if source.target in parameters and not source.target.startswith(MTP)
    ]
    embedding = next(source.name for source in sources if source.target == TOKENS)
    targets = Targets(model, family.prefix, _module_of(embedding), _module_of(HEAD_NAME))
    by_target: dict[str, list[Source]] = {}
    for source in sources:
        refused = next((what for end, what in REFUSED.items() if source.target.endswith(end)), None)
        if refused is not None:
            targets.refused |= dict.fromkeys(map(_module_of, _names_of(source)), refused)
        elif parameters[source.target].role in ("linear", "router") and source.target != HEAD:
            by_target.setdefault(source.target, []).append(source)
    for target, its_sources in by_target.items():
        _add_linear(targets, parameters[target], its_sources)
    return targets


def _add_linear(targets: Targets, parameter: Parameter, sources: Sequence[Source]) -> None:
    linear, ends = _module_of(parameter.name), list[int]()
    reason = _reason_against(targets.model, linear)
    ordered = sorted(sources, key=lambda source: source.first_row)
    for segment, (names, run) in enumerate(groupby(ordered, _names_of)):
        rows = list(run)
        ends.append(rows[-1].first_row + rows[-1].parts.count * rows[-1].num_rows)
        for name in names:
            module = _module_of(name)
            if reason is not None:
                targets.refused[module] = reason
            named = [_as_named(source, name) for source in rows]
            targets.segments.setdefault(module, []).append(SegmentSource(linear, segment, named))
    targets.linears[linear] = LinearPlan(parameter.shape[1], tuple(ends))


def _reason_against(model: ModelDescription, linear: str) -> str | None:
    """Returns why no adapter may update a linear layer: a GGUF file may have value heads in an order of its own."""
    is_tiled = any(delta.has_tiled_heads for delta in model.find(GatedDeltaDescription))
    if ".delta_" in linear and is_tiled:
        return "the recurrent layers of a GGUF file, whose heads are in another order; use the model's safetensors"
    return None


def _names_of(source: Source) -> tuple[str, ...]:
    """Returns the names that the source may have in checkpoints."""
    return *(part for name in source.names for part in source.of_parts(name)), *(stack.name for stack in source.stacks)


def _as_named(source: Source, name: str) -> StoredSource:
    """Returns the source of the rows in the tensor of this name; an update has rows where the weight has."""
    stacks = {stack.name: stack for stack in source.stacks}
    shape = (source.num_rows, *source.shape[1:])
    change = None if source.change == "transposed" else source.change
    source = replace(source, name=name, shape=shape, change=change)
    return StoredSource(source, range(source.parts.count), stacks.get(name))


def _module_of(name: str) -> str:
    return name.removesuffix(WEIGHT)
