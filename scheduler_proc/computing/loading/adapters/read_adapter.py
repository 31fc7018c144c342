"""Reads a LoRA adapter that PEFT has saved, and checks all of it before a step uses any.

Shape legend: R rank, I inputs, O outputs, E embedding size, V vocabulary.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from messages.config.server import ModelConfig
from runtime.adapter_files import AdapterError, read_files
from scheduler_proc.computing.loading.adapters.peft_config import PeftConfig, read_peft_config
from scheduler_proc.computing.loading.adapters.targets import SegmentSource, Targets, find_targets
from scheduler_proc.computing.loading.checkpoint import usual_name
from scheduler_proc.computing.loading.weights import rows_of
from scheduler_proc.computing.model.adapters import Adapters, AdapterSlots, HostAdapter, LowRank, OwnTables, Table
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.placement import Placement

MAX_HEADER_BYTES = 16 << 20
LENGTH_BYTES = 8
MAX_NAMES_SHOWN = 4

WRAPPED = re.compile(r"^base_model\.model\.")
PART = re.compile(r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB])(?:\.(?!weight$|bias$)\w+)?(?:\.weight)?")
"""The name of a matrix of an update; PEFT writes the adapter's own name in it, or leaves it out."""

TABLE = re.compile(r"(?P<module>.+?)(?P<kind>\.base_layer|\.original_module|\.modules_to_save(?:\.\w+)?)?\.weight")
"""The name of a whole matrix. PEFT saves the base model's own values, too, with an update of the embedding."""

WHOLE = "whole matrix"
TIED_BY_PEFT = "embed_tokens"
"""`ensure_weight_tying` has no effect on embeddings of another name."""

COPIES = (".base_layer", ".original_module")

ODD_PARTS = {
    ".lora_magnitude_vector": "the magnitudes of DoRA",
    ".lora_B.bias": "biases of updates",
    ".token_adapter.": "embeddings of single tokens",
    ".experts.": "experts",
    "vera_": "VeRA",
}
"""Parts of the names of tensors that are not supported, and what these tensors are."""


@dataclass
class _Module:
    """The tensors of one module, and its name in the adapter."""

    name: str
    parts: dict[str, Tensor] = field(default_factory=dict)
    """`lora_A`, `lora_B` or `WHOLE`."""


def read_adapter(path: str, targets: Targets, dtype: torch.dtype, max_rank: int) -> HostAdapter:
    """Returns the adapter in the directory `path`, with its values in `dtype`. Raises `AdapterError`.

    It can run in any thread. An update that is zero takes no memory.
    """
    files = read_files(path)
    config = read_peft_config(files.config, max_rank)
    modules = _sort_tensors(_load_tensors(files.weights), targets)
    linears: dict[str, list[LowRank | None]] = {}
    for name in sorted(modules.keys() - {targets.embedding, targets.head}):
        update = _make_update(modules[name], config, *targets.sizes(name))
        for segment in targets.segments[name]:
            updates = linears.setdefault(segment.linear, [None] * len(targets.linears[segment.linear].ends))
            updates[segment.segment] = _cut(name, update, segment, dtype)
    tables = [
        _read_table(name, modules.get(name), config, targets, dtype) for name in (targets.embedding, targets.head)
    ]
    is_tied = targets.model.has_tied_head and targets.embedding.endswith(TIED_BY_PEFT)
    if config.ties_tables and is_tied and tables[1] is None:
        tables[1] = tables[0]
    found = [update for updates in linears.values() for update in updates] + tables
    if not any(update is not None for update in found):
        raise AdapterError("adapter_model.safetensors has no tensors")
    rank = max((len(update.a) for update in found if isinstance(update, LowRank)), default=0)
    return HostAdapter(files.digest, rank, linears, *tables)


def _load_tensors(data: bytes) -> Mapping[str, Tensor]:
    header_bytes = int.from_bytes(data[:LENGTH_BYTES], "little")
    if header_bytes > min(MAX_HEADER_BYTES, len(data) - LENGTH_BYTES):
        raise AdapterError(f"adapter_model.safetensors: its header of {header_bytes} bytes is damaged or too large")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise AdapterError(f"adapter_model.safetensors: is cut off or damaged: {reason:.200}") from None


def _sort_tensors(tensors: Mapping[str, Tensor], targets: Targets) -> dict[str, _Module]:
    """Returns the tensors by module, in the names of `targets`. Refuses those that belong to none."""
    modules: dict[str, _Module] = {}
    unknown: list[str] = []
    tables = targets.embedding, targets.head
    for name, tensor in tensors.items():
        usual = usual_name(WRAPPED.sub("", name))
        part, table = PART.fullmatch(usual), TABLE.fullmatch(usual)
        match = part or table
        own_name = usual if match is None else match["module"]
        module = targets.find(own_name)
        if module in targets.refused:
            raise AdapterError(f"{name}: {targets.refused[module]} cannot have an adapter")
        if module is None or (part is None and (table is None or module not in tables)):
            unknown.append(name)
            continue
        if part is None:
            _check_shape(name, tensor, _table_shape(targets))
        if table is not None and table["kind"] in COPIES:
            continue
        parts = modules.setdefault(module, _Module(own_name)).parts
        if parts.setdefault(part["part"].replace("embedding_", "") if part else WHOLE, tensor) is not tensor:
            raise AdapterError(f"{name}: there are two tensors for the same part of {own_name}")
    if unknown:
        raise AdapterError(_explain_unknown(unknown))
    return modules


def _explain_unknown(names: list[str]) -> str:
    reasons = {reason for part, reason in ODD_PARTS.items() if any(part in name for name in names)}
    why = f" ({', '.join(sorted(reasons))} cannot be served)" if reasons else ""
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    shown = ", ".join(name[:120] for name in sorted(names)[:MAX_NAMES_SHOWN])
    return f"adapter_model.safetensors: tensors that this model has no place for: {shown}{more}{why}"


def _make_update(module: _Module, config: PeftConfig, num_in: int, num_out: int) -> LowRank:
    """Returns the update of a module as it is stored; its outputs are in the checkpoint's order."""
    if missing := sorted({"lora_A", "lora_B"} - module.parts.keys()):
        raise AdapterError(f"{module.name}: {missing[0]} is missing")
    rank, (a_RI, b_OR) = config.rank_of(module.name), (module.parts[part] for part in ("lora_A", "lora_B"))
    _check_shape(f"{module.name}: lora_A", a_RI, (rank, num_in))
    _check_shape(f"{module.name}: lora_B", b_OR, (num_out, rank))
    return LowRank(a_RI, b_OR.T, config.scale_of(module.name))


def _cut(module: str, update: LowRank, segment: SegmentSource, dtype: torch.dtype) -> LowRank:
    """Returns the update of a segment's outputs, in our order: as the rows of the weight are read."""
    a_RI, b_RO, scale = update
    rows = torch.cat([torch.as_tensor(rows_of(source.name, b_RO.T, source)) for source in segment.sources])
    return LowRank(_cast(module, a_RI, dtype), _cast(module, rows.T, dtype), scale)


def _read_table(name: str, module: _Module | None, config: PeftConfig, targets: Targets, dtype: torch.dtype) -> Table:
    """Returns what the adapter has for the embedding or the head."""
    if module is None:
        return None
    if WHOLE in module.parts:
        if len(module.parts) > 1:
            raise AdapterError(f"{name}: it has both a whole matrix and an update")
        return _cast(name, module.parts[WHOLE], dtype)
    sizes = _table_shape(targets)
    if name == targets.head:
        a_RE, b_RV, scale = _make_update(module, config, *reversed(sizes))
    else:  # its update is that of the transposed matrix
        b_RV, a_RE, scale = _make_update(module, config, *sizes)
    return LowRank(_cast(name, a_RE, dtype), _cast(name, b_RV, dtype), scale)


def _table_shape(targets: Targets) -> tuple[int, int]:
    return targets.model.vocab_size, targets.model.hidden_size


def _check_shape(name: str, tensor: Tensor, shape: Iterable[int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise AdapterError(f"{name}: expected {list(shape)}, got {list(tensor.shape)}: it is not of this model")


def _cast(module: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if not tensor.dtype.is_floating_point:
        raise AdapterError(f"{module}: its values are {tensor.dtype}; only floating-point numbers are supported")
    values = tensor.to(dtype)
    if not bool(values.isfinite().all()):
        raise AdapterError(f"{module}: some values are NaN or infinite in {str(dtype).removeprefix('torch.')}")
    return values.contiguous()


def open_adapters(
    config: ModelConfig, family: Family, model: ModelDescription, weights: Weights, placement: Placement
) -> Adapters:
    """Returns what the model has for adapters. It keeps the embedding and the head among `weights`."""
    max_rank, targets = config.max_lora_rank, find_targets(family, model)
    slots = AdapterSlots(targets.linears, config.num_lora_slots, max_rank, placement)
    read = partial(read_adapter, targets=targets, dtype=placement.dtype, max_rank=max_rank)
    return Adapters(read, slots, OwnTables(model, weights, placement))
