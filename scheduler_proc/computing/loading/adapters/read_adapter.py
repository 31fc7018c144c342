"""Reads a LoRA adapter that PEFT has saved, and checks all of it before a step uses any.

Shape legend: R rank, I inputs, O outputs, E embedding size, V vocabulary.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from messages.config.server import ModelConfig
from runtime.adapter_files import AdapterError, AdapterFiles, TensorEntry, open_files
from scheduler_proc.computing.loading.adapters.peft_config import PeftConfig, read_peft_config
from scheduler_proc.computing.loading.adapters.targets import SegmentSource, Targets, find_targets
from scheduler_proc.computing.loading.checkpoint import usual_name
from scheduler_proc.computing.loading.stored_parts import parts_of
from scheduler_proc.computing.model.adapters import Adapters, AdapterSlots, HostAdapter, LowRank, OwnTables, Table
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.families.family import Family
from scheduler_proc.computing.placement import Placement

MAX_NAMES_SHOWN = 4
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
"""Floating-point numbers by their names in safetensors."""

WRAPPED = re.compile(r"^base_model\.model\.")
PART = re.compile(r"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB])(?:\.(?!weight$|bias$)\w+)?(?:\.weight)?")
"""The name of a matrix of an update; PEFT writes the adapter's own name in it, or leaves it out."""

TABLE = re.compile(r"(?P<module>.+?)(?P<kind>\.base_layer|\.original_module|\.modules_to_save(?:\.\w+)?)?\.weight")
"""The name of a whole matrix. PEFT saves the base model's own values, too, with an update of the embedding."""

WHOLE = "whole matrix"
TIED_BY_PEFT = "embed_tokens"
"""`ensure_weight_tying` has no effect on embeddings of another name."""

COPIES = (".base_layer", ".original_module")

MERGE = "merge the adapter into the model (PEFT's merge_and_unload) and serve that"
ODD_PARTS = {
    ".lora_magnitude_vector": "the magnitudes of DoRA",
    ".lora_B.bias": "biases of updates",
    ".token_adapter.": "embeddings of single tokens",
    ".experts.": "experts",
    "vera_": "VeRA",
    "norm": f"trained norms; {MERGE}",
    ".ln_": f"trained norms; {MERGE}",
}
"""Parts of the names of tensors that are not supported, and what these tensors are."""


@dataclass
class _Module:
    """The tensors of one module, and its name in the adapter."""

    name: str
    stored: dict[str, str] = field(default_factory=dict)
    """The names of tensors by their part: `lora_A`, `lora_B` or `WHOLE`."""
    parts: dict[str, Tensor] = field(default_factory=dict)


def read_adapter(path: str, targets: Targets, dtype: torch.dtype, max_rank: int) -> HostAdapter:
    """Returns the adapter in the directory `path`, with its values in `dtype`. Raises `AdapterError`.

    It can run in any thread. No values are read before the shapes of all tensors have been compared with the model's.
    """
    with open_files(path) as files:
        config = read_peft_config(files.config, max_rank)
        modules = _sort_tensors(files.tensors, targets)
        config = config.of_modules([module.name for module in modules.values()])
        for name, module in modules.items():
            _check_module(name, module, files.tensors, config, targets)
        _read_values(files, modules)
        digest = files.digest()
    linears: dict[str, list[LowRank | None]] = {}
    for name in sorted(modules.keys() - {targets.embedding, targets.head}):
        update = _make_update(modules[name], config)
        for segment in targets.segments[name]:
            updates = linears.setdefault(segment.linear, [None] * len(targets.linears[segment.linear].ends))
            updates[segment.segment] = _cut(name, update, segment, dtype)
    embedding, head = (
        _read_table(name, modules.get(name), config, targets, dtype) for name in (targets.embedding, targets.head)
    )
    is_tied = targets.model.has_tied_head and targets.embedding.endswith(TIED_BY_PEFT)
    if config.ties_tables and is_tied and head is None:
        head = embedding
    found = [*(update for updates in linears.values() for update in updates), embedding, head]
    if not any(update is not None for update in found):
        raise AdapterError("adapter_model.safetensors has no tensors")
    rank = max((len(update.a) for update in found if isinstance(update, LowRank)), default=0)
    return HostAdapter(digest, rank, linears, embedding, head)


def _sort_tensors(tensors: Mapping[str, TensorEntry], targets: Targets) -> dict[str, _Module]:
    """Returns the tensors by module, in the names of `targets`. Refuses those that belong to none."""
    modules: dict[str, _Module] = {}
    copies = _Module("copies of the model's own values")
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
            _check_table(name, tensor, targets)
        if table is not None and table["kind"] in COPIES:
            stored, key = copies.stored, f"{module}{table['kind']}"
        else:
            stored = modules.setdefault(module, _Module(own_name)).stored
            key = part["part"].replace("embedding_", "") if part else WHOLE
        if stored.setdefault(key, name) != name:
            raise AdapterError(f"{name}: there are two tensors for the same part of {own_name}")
    if unknown:
        raise AdapterError(_explain_unknown(unknown))
    return modules


def _check_module(
    name: str, module: _Module, tensors: Mapping[str, TensorEntry], config: PeftConfig, targets: Targets
) -> None:
    """Raises `AdapterError` if the tensors of a module are missing, or are not of the model's shapes."""
    entries = {part: tensors[stored] for part, stored in module.stored.items()}
    for entry in entries.values():
        if entry.dtype not in DTYPES:
            raise AdapterError(f"{name}: its values are {entry.dtype}; only floating-point numbers are supported")
    if WHOLE in entries:
        if len(entries) > 1:
            raise AdapterError(f"{name}: it has both a whole matrix and an update")
        return
    if missing := sorted({"lora_A", "lora_B"} - entries.keys()):
        raise AdapterError(f"{module.name}: {missing[0]} is missing")
    rank = config.rank_of(module.name)
    if name == targets.embedding:  # its update is that of the transposed matrix
        num_in, num_out = _table_shape(targets)
    else:
        num_out, num_in = _table_shape(targets) if name == targets.head else reversed(targets.sizes(name))
    _check_shape(f"{module.name}: lora_A", entries["lora_A"], (rank, num_in))
    _check_shape(f"{module.name}: lora_B", entries["lora_B"], (num_out, rank))


def _read_values(files: AdapterFiles, modules: Mapping[str, _Module]) -> None:
    """Reads the values of all modules."""
    places = {stored: (module, part) for module in modules.values() for part, stored in module.stored.items()}
    for name, data in files.read():
        if name in places:
            (module, part), entry = places[name], files.tensors[name]
            module.parts[part] = torch.frombuffer(data, dtype=DTYPES[entry.dtype]).view(entry.shape)


def _explain_unknown(names: list[str]) -> str:
    reasons = {reason for part, reason in ODD_PARTS.items() if any(part in name for name in names)}
    why = f" (not supported: {', '.join(sorted(reasons))})" if reasons else ""
    more = f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else ""
    shown = ", ".join(name[:120] for name in sorted(names)[:MAX_NAMES_SHOWN])
    return f"adapter_model.safetensors: tensors that this model has no place for: {shown}{more}{why}"


def _make_update(module: _Module, config: PeftConfig) -> LowRank:
    """Returns the update of a module as it is stored; its outputs are in the checkpoint's order."""
    return LowRank(module.parts["lora_A"], module.parts["lora_B"].T, config.scale_of(module.name))


def _cut(module: str, update: LowRank, segment: SegmentSource, dtype: torch.dtype) -> LowRank:
    """Returns the update of a segment's outputs, in our order: as the rows of the weight are read."""
    a_RI, b_RO, scale = update
    parts = [rows for stored in segment.sources for rows in parts_of(stored.source.name, b_RO.T, stored)]
    rows = torch.cat(list(map(torch.as_tensor, parts)))
    return LowRank(_cast(module, a_RI, dtype), _cast(module, rows.T, dtype), scale)


def _read_table(name: str, module: _Module | None, config: PeftConfig, targets: Targets, dtype: torch.dtype) -> Table:
    """Returns what the adapter has for the embedding or the head."""
    if module is None:
        return None
    if WHOLE in module.parts:
        return _cast(name, module.parts[WHOLE], dtype)
    a_RI, b_RO, scale = _make_update(module, config)
    if name == targets.embedding:
        a_RI, b_RO = b_RO, a_RI
    return LowRank(_cast(name, a_RI, dtype), _cast(name, b_RO, dtype), scale)


def _table_shape(targets: Targets) -> tuple[int, int]:
    return targets.model.vocab_size, targets.model.hidden_size


def _check_table(name: str, tensor: TensorEntry, targets: Targets) -> None:
    vocab_size, size = _table_shape(targets)
    if tensor.shape[1:] == (size,) and tensor.shape[0] != vocab_size:
        raise AdapterError(
            f"{name}: expected {[vocab_size, size]}, got {list(tensor.shape)}: its vocabulary was resized in training; "
            f"{MERGE}"
        )
    _check_shape(name, tensor, (vocab_size, size))


def _check_shape(name: str, tensor: TensorEntry, shape: Iterable[int]) -> None:
    if tensor.shape != tuple(shape):
        raise AdapterError(f"{name}: expected {list(shape)}, got {list(tensor.shape)}: it is not of this model")


def _cast(module: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
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
