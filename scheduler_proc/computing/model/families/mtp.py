"""Where checkpoints have a head of multi-token prediction: a layer like the model's, norms, and a linear before it."""

from dataclasses import dataclass, replace

from scheduler_proc.computing.model.description import MTP, ModelDescription
from scheduler_proc.computing.model.families.family import ListSources, Source, renamed


@dataclass(frozen=True)
class MtpNames:
    """Names of the head's tensors, or their beginnings if they end with a dot. `{}` is the number of layers before it.

    `join` is the linear of the embedding and the hidden state, which have a norm each.
    """

    layer: str
    final_norm: str
    join: str
    embedding_norm: str
    hidden_norm: str


NEXTN = MtpNames(
    layer="model.layers.{}.",
    final_norm="model.layers.{}.shared_head.norm.",
    join="model.layers.{}.eh_proj.weight",
    embedding_norm="model.layers.{}.enorm.weight",
    hidden_norm="model.layers.{}.hnorm.weight",
)
"""DeepSeek V3's and GLM's: a layer after the last one. Its `embed_tokens` and `shared_head.head` are the model's."""


def with_mtp(list_sources: ListSources, names: MtpNames) -> ListSources:
    """Returns what lists the sources of a model and of its head, if it has one."""

    def list_all(model: ModelDescription) -> list[Source]:
        sources = list_sources(model)
        return sources if model.mtp is None else sources + _mtp_sources(model, list_sources, names)

    return list_all


def _mtp_sources(model: ModelDescription, list_sources: ListSources, names: MtpNames) -> list[Source]:
    """The head is like a model with one layer, whose embedding is the first source."""
    assert model.mtp is not None
    number, size = len(model.layers), model.hidden_size
    alone = list_sources(replace(model, layers=(model.mtp,), mtp=None, has_tied_head=True))
    renames = {"model.layers.0.": names.layer.format(number), "model.norm.": names.final_norm.format(number)}
    return [
        *(replace(source, target=f"{MTP}.{source.target}") for source in renamed(alone, renames)[1:]),
        Source(names.join.format(number), (size, 2 * size), f"{MTP}.join.weight"),
        Source(names.embedding_norm.format(number), (size,), f"{MTP}.embedding_norm.weight"),
        Source(names.hidden_norm.format(number), (size,), f"{MTP}.hidden_norm.weight"),
    ]
