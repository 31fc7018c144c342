"""Compares a model of transformers as it is run here with transformers' own eager attention, before it serves.

Both compute in float32: in 16 bits the effect of a wrong mask can be as small as rounding. A model in another format is
copied for this, but only its first layers, up to the first of each kind, and a part of the vocabulary.

"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from messages.columns import pack_int32, pack_int64
from messages.errors import BootError
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch
from scheduler_proc.computing.kv_cache.kv_tensors import allocate_cache
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.packing import make_step_inputs
from scheduler_proc.computing.transformers_model.decoder import TransformersDecoder
from scheduler_proc.computing.transformers_model.probe import AttentionCall, find_layers

MAX_IDS = 512
"""Token ids of the prompts; of larger vocabularies no others are copied."""

PROMPT_LENS = (39, 12)
PAGE_SIZE = 64
STEPS = (((0, 0, 16), (1, 0, 11)), ((1, 11, 12), (0, 16, 38)), ((0, 38, 39),))
"""Steps of rows (prompt, first token, end): two prompts in chunks, then a decode row with a chunk, then one alone."""

TOLERANCE = 1e-3
"""Relative to the mean magnitude of an output. Rounding made 1e-5 at most in 45 families, and a scale that is 1 % off
exceeds it."""


Outputs = list[tuple[str, Tensor]]
"""Outputs of layers, and logits: each with its name, [tokens, values]."""


@dataclass(frozen=True)
class Checked:
    """A model in float32, with what the check needs to know of it."""

    module: Any
    layers: nn.ModuleList
    model: ModelDescription


def check(module: Any, calls: list[AttentionCall], model: ModelDescription, max_model_len: int) -> None:
    """Raises `BootError` that names the first layer whose output differs from that with transformers' attention."""
    name, layers = find_layers(module, calls)
    checked = Checked(module, layers, model)
    if module.dtype != torch.float32:
        checked = _copy_part(checked, name, calls)
    lens = [min(length, max_model_len) for length in PROMPT_LENS]
    generator = torch.Generator().manual_seed(0)
    num_ids = min(MAX_IDS, model.vocab_size)
    prompts = [torch.randint(num_ids, (length,), generator=generator).to(module.device) for length in lens]
    with torch.inference_mode():
        expected = _run_eager(checked, prompts)
        found = _run_paged(checked, prompts)
    for (where, theirs), (_, ours) in zip(expected, found, strict=True):
        size, difference = float(theirs.abs().mean()), float((theirs - ours).abs().max())
        if not difference <= TOLERANCE * size:
            raise BootError(
                f"with this server's attention the model computes something else: {where} differs first, by "
                f"{difference:.2g} at a mean magnitude of {size:.2g}. It may keep another state than K and V, depend "
                "on other rows of a step, or change attention in a way that its call does not show"
            )


def _copy_part(whole: Checked, name: str, calls: list[AttentionCall]) -> Checked:
    """Returns a copy in float32 of the first layers, until each kind has been seen, and of a part of the vocabulary."""
    kinds = [_kind_of(layer, calls) for layer in whole.layers]
    num_layers = 1 + max(kinds.index(kind) for kind in kinds)
    memo: dict[int, Any] = {id(layer): None for layer in whole.layers[num_layers:]}
    for part in (whole.module.get_input_embeddings(), whole.module.get_output_embeddings()):
        for parameter in () if part is None else part.parameters():
            memo[id(parameter)] = nn.Parameter(parameter[:MAX_IDS].detach().clone(), requires_grad=False)
    module = copy.deepcopy(whole.module, memo)
    layers = module.get_submodule(name)
    del layers[num_layers:]
    module.get_input_embeddings().padding_idx = None  # it may be beyond the part
    modules = {each for layer in whole.layers[:num_layers] for each in layer.modules()}
    kept = [layer for layer, call in zip(whole.model.layers, calls, strict=True) if call.module in modules]
    return Checked(module.float(), layers, replace(whole.model, layers=tuple(kept)))


def _kind_of(layer: nn.Module, calls: list[AttentionCall]) -> tuple[Any, ...]:
    modules = set(layer.modules())
    shapes = [(name, parameter.shape) for name, parameter in layer.named_parameters()]
    return type(layer), shapes, [call.attention for call in calls if call.module in modules]


@contextmanager
def _observed(layers: nn.ModuleList) -> Iterator[Outputs]:
    """Collects the outputs of layers during the block, in the order in which they are computed."""
    outputs: Outputs = []

    def observe(index: int, layer: nn.Module, inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        outputs.append((f"layer {index} ({type(layer).__name__})", tensor.transpose(0, -2).flatten(1)))

    hooks = [layer.register_forward_hook(partial(observe, index)) for index, layer in enumerate(layers)]
    yield outputs
    for hook in hooks:
        hook.remove()


def _run_eager(checked: Checked, prompts: Sequence[Tensor]) -> Outputs:
    """Returns the outputs with transformers' own attention, for the tokens of all prompts one after another."""
    checked.module.set_attn_implementation("eager")
    runs: list[Outputs] = []
    for prompt in prompts:
        with _observed(checked.layers) as outputs:
            logits = checked.module(input_ids=prompt[None], use_cache=False).logits[0]
        runs.append([*outputs, ("the logits", logits)])
    return _join(runs)


def _run_paged(checked: Checked, prompts: Sequence[Tensor]) -> Outputs:
    """Returns the same outputs, computed in the steps `STEPS` over a paged cache."""
    device, ends = checked.module.device, [len(prompt) for prompt in prompts]
    cache = allocate_cache(checked.model, len(prompts), PAGE_SIZE, Placement(device, torch.float32))
    decoder = TransformersDecoder(checked.module, checked.model)
    runs, order = list[Outputs](), list[int]()
    for step in STEPS:
        rows = [(row, begin, min(end, ends[row])) for row, begin, end in step if begin < ends[row]]
        if not rows:  # the prompts are that short
            continue
        with _observed(checked.layers) as outputs:
            logits = decoder.forward(make_step_inputs(_plan(rows, prompts), device), cache.layers)
        runs.append([*outputs, ("the logits", logits)])
        order += [row * ends[0] + position for row, begin, end in rows for position in range(begin, end)]
    places = torch.tensor(order, device=device).argsort()
    return [(name, output[places]) for name, output in _join(runs)]


def _join(runs: Sequence[Outputs]) -> Outputs:
    return [(parts[0][0], torch.cat([output for _, output in parts])) for parts in zip(*runs, strict=True)]


def _plan(rows: list[tuple[int, int, int]], prompts: Sequence[Tensor]) -> Batch:
    """Returns the step of these rows, each with a page of its own."""
    positions = [position for _, begin, end in rows for position in range(begin, end)]
    query_lens = [end - begin for _, begin, end in rows]
    columns = fill_columns(
        Batch,
        {ROW: len(rows), TOKEN: len(positions), SAMPLED: len(positions)},
        query_lens=pack_int32(query_lens),
        context_lens=pack_int32(begin for _, begin, _ in rows),
        token_ids=pack_int32(token for row, begin, end in rows for token in prompts[row][begin:end].tolist()),
        positions=pack_int32(positions),
        slots=pack_int64(row * PAGE_SIZE + position for row, begin, end in rows for position in range(begin, end)),
        page_tables=pack_int32(row for row, _, _ in rows),
        sample_tokens=pack_int32(range(len(positions))),
    )
    num_decode = query_lens.count(1)
    return Batch(step_id=0, num_decode_rows=num_decode, num_pages_per_row=1, **columns)
