"""Where checkpoints have the parameters of a mixture of experts."""

from dataclasses import dataclass

from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families.family import Source, linear_sources


@dataclass(frozen=True)
class ExpertNames:
    """Names in the MLP of a layer; `gate`, `up` and `down` are those of an expert."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"


def expert_sources(
    name: str, layer: str, mlp: ExpertMlpDescription, hidden: int, names: ExpertNames = ExpertNames()
) -> list[Source]:
    sources = linear_sources(f"{name}.gate", f"{layer}.router", mlp.num_experts, hidden, has_bias=False)
    into, out = f"{layer}.experts_in.weight", f"{layer}.experts_out.weight"
    for expert in range(mlp.num_experts):
        theirs, first = f"{name}.experts.{expert}", 2 * mlp.size * expert
        sources += [
            Source(f"{theirs}.{names.gate}.weight", (mlp.size, hidden), into, first),
            Source(f"{theirs}.{names.up}.weight", (mlp.size, hidden), into, first + mlp.size),
            Source(f"{theirs}.{names.down}.weight", (hidden, mlp.size), out, hidden * expert),
        ]
    return sources + _shared_sources(name, layer, mlp, hidden, names)


def _shared_sources(name: str, layer: str, mlp: ExpertMlpDescription, hidden: int, names: ExpertNames) -> list[Source]:
    sources: list[Source] = []
    if mlp.shared is not None:
        theirs, size = f"{name}.{names.shared}", mlp.shared.size
        into, out = f"{layer}.shared.mlp_in", f"{layer}.shared.mlp_out"
        sources += [
            *linear_sources(f"{theirs}.gate_proj", into, size, hidden, has_bias=False),
            *linear_sources(f"{theirs}.up_proj", into, size, hidden, has_bias=False, first_row=size),
            *linear_sources(f"{theirs}.down_proj", out, hidden, size, has_bias=False),
        ]
    if mlp.has_shared_gate:
        sources += linear_sources(f"{name}.{names.shared_gate}", f"{layer}.shared_gate", 1, hidden, has_bias=False)
    return sources
