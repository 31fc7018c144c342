"""Where checkpoints have the parameters of a mixture of experts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from scheduler_proc.computing.model.description import MlpDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families.family import Parts, Source, Stack, linear_sources
from scheduler_proc.computing.model.families.llama import MlpSources, dense_mlp_sources


@dataclass(frozen=True)
class FusedExperts:
    """Tensors with the weights of all experts, which a checkpoint may have in place of each expert's.

    `is_interleaved`: rows of gates and ups alternate; else the gates are before the ups.
    """

    gate_up: str = "experts.gate_up_proj"
    down: str = "experts.down_proj"
    is_interleaved: bool = False
    is_transposed: bool = False


@dataclass(frozen=True)
class ExpertNames:
    """Names in the MLP of a layer; `gate`, `up` and `down` are those of an expert."""

    router: str = "gate"
    correction: str = "gate.e_score_correction_bias"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"
    fused: FusedExperts = FusedExperts()


def expert_sources(
    name: str, layer: str, mlp: ExpertMlpDescription, hidden: int, names: ExpertNames = ExpertNames()
) -> list[Source]:
    size, has_bias = mlp.size, mlp.has_bias
    sources = linear_sources(f"{name}.{names.router}", f"{layer}.router", mlp.num_experts, hidden, has_bias)
    if mlp.has_correction:
        sources.append(Source(f"{name}.{names.correction}", (mlp.num_experts,), f"{layer}.router_correction"))
    into, out, theirs, fused = f"{layer}.experts_in", f"{layer}.experts_out", f"{name}.experts.{{}}", names.fused
    gate = linear_sources(f"{theirs}.{names.gate}", into, size, hidden, has_bias)
    up = linear_sources(f"{theirs}.{names.up}", into, size, hidden, has_bias, mlp.in_size - size)
    down = linear_sources(f"{theirs}.{names.down}", out, hidden, size, has_bias)
    gates = Stack(
        f"{name}.{fused.gate_up}",
        (mlp.num_experts, mlp.in_size, hidden),
        step=2 if fused.is_interleaved else 1,
        is_transposed=fused.is_transposed,
    )
    ups = replace(gates, first_row=1 if fused.is_interleaved else mlp.in_size - size)
    downs = Stack(f"{name}.{fused.down}", (mlp.num_experts, hidden, size), is_transposed=fused.is_transposed)
    sources += _stacked(gate, gates) if mlp.is_gated else ()
    sources += [*_stacked(up, ups), *_stacked(down, downs)]
    return sources + _shared_sources(name, layer, mlp, hidden, names)


def sources_with(names: ExpertNames) -> MlpSources:
    """Returns the sources of an MLP that may be dense, with Llama's names, or experts with these."""

    def mlp_sources(name: str, layer: str, mlp: MlpDescription, hidden: int) -> list[Source]:
        if isinstance(mlp, ExpertMlpDescription):
            return expert_sources(name, layer, mlp, hidden, names)
        return dense_mlp_sources(name, layer, mlp, hidden)

    return mlp_sources


def _stacked(sources: list[Source], weights: Stack) -> Iterator[Source]:
    """Yields the sources of all experts' linears, of which `sources` are the first's.

    They may be in a stack of weights and one of biases, or, as in GGUF files, in one that has their own name.
    """
    biases = replace(weights, name=f"{weights.name}_bias", shape=weights.shape[:-1], is_transposed=False)
    num_experts, num_rows, _ = weights.shape
    for source in sources:
        own = Stack(source.name, (num_experts, *source.shape))
        others = own, weights if len(source.shape) > 1 else biases
        yield replace(source, others=others, parts=Parts(num_experts, num_rows))


def _shared_sources(name: str, layer: str, mlp: ExpertMlpDescription, hidden: int, names: ExpertNames) -> list[Source]:
    sources: list[Source] = []
    if mlp.shared is not None:
        sources += dense_mlp_sources(f"{name}.{names.shared}", f"{layer}.shared", mlp.shared, hidden)
    if mlp.has_shared_gate:
        sources += linear_sources(f"{name}.{names.shared_gate}", f"{layer}.shared_gate", 1, hidden, has_bias=False)
    return sources
