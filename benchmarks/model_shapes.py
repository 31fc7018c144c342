"""Shapes of well-known models: their sizes, their steps, and servers or runners with random weights."""

import json
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from messages.columns import INT32, INT64, pack_float32, pack_int32, pack_int64, unpack_int32
from messages.config.server import Config
from messages.errors import UsageError
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.stages import model_parameters
from scheduler_proc.computing.runner import Runner
from supervisor.flags import parse_flags
from supervisor.model.facts import read_model_facts
from supervisor.run import check_flags

TEMPERATURE = 0.6
"""The temperature of steps and offline runs, as in nano-vllm's and mini-sglang's benchmark."""

SHAPES: dict[str, dict[str, object]] = {
    "gpt2-124m": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    },
    "llama-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 49152,
        "max_position_embeddings": 2048,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "qwen2-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b-4-layers": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "qwen3-14b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
    "llama-3-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
    },
}
SHAPES["qwen3-1.7b"] = {**SHAPES["qwen3-0.6b"], "hidden_size": 2048, "intermediate_size": 6144}
SHAPES["qwen3-30b-a3b"] = {**SHAPES["qwen3-30b-a3b-4-layers"], "num_hidden_layers": 48}
SHAPES["qwen3-a3b-50k"] = {**SHAPES["qwen3-30b-a3b-4-layers"], "vocab_size": 50257}
"""Four layers of experts, of which GPT-2's vocabulary takes a small part."""
SHAPES["qwen3.5-0.8b"] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 248320,
    "max_position_embeddings": 32768,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25},
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
SHAPES["llama-135m-16k"] = {**SHAPES["llama-135m"], "max_position_embeddings": 16384, "rope_theta": 100000.0}


WEIGHT_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}
"""Bits per weight by format, including the scales of int4 groups."""


def read_shape(shape: dict[str, object], max_model_len: int) -> ModelDescription:
    """Returns the model of a Hugging Face configuration."""
    hf_config = HfConfig(dict(shape))
    return find_family(hf_config).describe(hf_config, max_model_len)


def weight_bytes(model: ModelDescription, itemsize: int, num_rows: int | None = None) -> int:
    """Returns the bytes of the weights that one step reads: embeddings are looked up, except for a tied head.

    A step of `num_rows` rows reads the experts that its rows choose, on average, if all are equally likely.
    """
    share = 1.0 if num_rows is None else _share_of_experts(model, num_rows)
    read = (
        prod(parameter.shape) * (share if "experts" in parameter.role else 1)
        for parameter in model_parameters(model)
        if parameter.role not in ("embedding", "positions")
    )
    return round(itemsize * sum(read))


def _share_of_experts(model: ModelDescription, num_rows: int) -> float:
    mlps = (layer.mlp for layer in model.layers)
    experts = next((mlp for mlp in mlps if isinstance(mlp, ExpertMlpDescription)), None)
    return 1.0 if experts is None else 1 - (1 - experts.num_chosen / experts.num_experts) ** num_rows


def kv_bytes(model: ModelDescription, itemsize: int) -> int:
    """Returns the bytes of a token's K and V in all layers."""
    return 2 * itemsize * sum(attention.kv_size for attention in attentions(model))


def state_bytes(model: ModelDescription, itemsize: int) -> int:
    """Returns the bytes of a sequence's recurrent states."""
    parts = (part for mixer in model.mixers for part in mixer.state)
    return sum((4 if part.number == "float32" else itemsize) * prod(part.shape) for part in parts)


def attentions(model: ModelDescription) -> Sequence[AttentionDescription]:
    """Returns those of the layers that have one."""
    return model.find(AttentionDescription)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@contextmanager
def served_shape(shape: dict[str, object], tokenizer: Path) -> Iterator[list[str]]:
    """The server's flags for the shape, whose directory is there inside of the block. Raises `UsageError`."""
    with tempfile.TemporaryDirectory(prefix="sluice-shape-") as model_dir:
        write_model(Path(model_dir), shape, tokenizer)
        yield ["--model", model_dir, "--load-format", "dummy"]


def write_model(model_dir: Path, shape: dict[str, object], tokenizer: Path) -> None:
    """Writes a directory that can be served without weights. Raises `UsageError` if there is no tokenizer."""
    (model_dir / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    if not (tokenizer / TOKENIZER_FILES[0]).is_file():
        raise UsageError(f"--tokenizer {tokenizer}: it has no {TOKENIZER_FILES[0]}")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, model_dir / name)


LAYER_COUNTS = ("n_layer", "num_hidden_layers")


def make_shape(name: str, num_layers: int | None = None) -> dict[str, object]:
    """Returns the Hugging Face configuration, with `num_layers` layers if it is given."""
    shape = SHAPES[name]
    return shape if num_layers is None else shape | {key: num_layers for key in LAYER_COUNTS if key in shape}


def max_positions(shape: dict[str, object]) -> int:
    """Returns the longest context of the model."""
    return int(str(shape.get("n_positions") or shape["max_position_embeddings"]))


@contextmanager
def configured_shape(shape: dict[str, object], flags: Sequence[str]) -> Iterator[Config]:
    """The server's configuration for such a model with random weights, whose directory is there inside of the block.

    Raises `UsageError` for flags.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-shape-") as scratch:
        model_dir = Path(scratch)
        (model_dir / "config.json").write_text(json.dumps(shape), encoding="utf-8")
        yield make_config(model_dir, ["--load-format", "dummy", *flags])


def make_config(model_dir: Path, flags: Sequence[str]) -> Config:
    """Returns the server's configuration for the model in a directory. Raises `UsageError` for flags."""
    sections: dict[str, Any] = dict(parse_flags(["--model", str(model_dir), *flags]))
    facts = read_model_facts(sections["model"], model_dir, model_dir, model_dir.name)
    return msgspec.structs.replace(check_flags(sections), facts=facts)


def load_shape(shape: dict[str, object], flags: Sequence[str]) -> Runner:
    """Returns a runner that is ready, as these flags of the server configure it.

    Raises `UsageError` for flags, `BootError` where it does not fit.
    """
    with configured_shape(shape, flags) as config:
        return load_runner(config, lambda text, fraction: None)


PAGE_SIZE = 16
ITEMSIZE = 2
"""Bytes of a bfloat16."""


def plan_decode(num_rows: int, context: int, temperature: float = TEMPERATURE) -> Batch:
    """Returns a step of one token in each row, every row with pages of its own, as the offline benchmark samples."""
    pages_a_row = -(-(context + 1) // PAGE_SIZE)
    last_slots = [(row * pages_a_row) * PAGE_SIZE + context for row in range(num_rows)]
    columns = fill_columns(
        Batch,
        {ROW: num_rows, TOKEN: num_rows, SAMPLED: num_rows},
        uids=pack_int64(range(num_rows)),
        context_lens=pack_int32([context] * num_rows),
        token_ids=pack_int32(range(num_rows)),
        positions=pack_int32([context] * num_rows),
        slots=pack_int64(last_slots),
        page_tables=pack_int32(range(num_rows * pages_a_row)),
        sample_tokens=pack_int32(range(num_rows)),
        temperatures=pack_float32([temperature] * num_rows),
        seeds=pack_int64(range(num_rows)),
        sample_positions=pack_int64([context + 1] * num_rows),
    )
    return Batch(step_id=0, num_decode_rows=num_rows, num_pages_per_row=pages_a_row, **columns)


def plan_prefill(num_tokens: int, num_before: int = 0) -> Batch:
    """Returns a step of one prompt, of which it computes the tokens after `num_before` and samples the next."""
    num_pages = -(-(num_before + num_tokens) // PAGE_SIZE)
    positions = range(num_before, num_before + num_tokens)
    columns = fill_columns(
        Batch,
        {ROW: 1, TOKEN: num_tokens, SAMPLED: 1},
        query_lens=pack_int32([num_tokens]),
        context_lens=pack_int32([num_before]),
        token_ids=pack_int32(index % 1000 for index in range(num_tokens)),
        positions=pack_int32(positions),
        slots=pack_int64(positions),
        page_tables=pack_int32(range(num_pages)),
        sample_tokens=pack_int32([num_tokens - 1]),
        sample_positions=pack_int64([num_before + num_tokens]),
    )
    return Batch(step_id=0, num_decode_rows=0, num_pages_per_row=num_pages, **columns)


def with_window_pages(batch: Batch, windows: tuple[int, int] | None) -> Batch:
    """Returns the step with window pages for what its tokens see; `windows` is that of its runner."""
    if windows is None:
        return batch
    window, num_pages = windows
    slots, tables, num_used = array(INT64), array(INT32), 0
    for length, context in zip(unpack_int32(batch.query_lens), unpack_int32(batch.context_lens), strict=True):
        first, end = max(0, context - window + 1) // PAGE_SIZE, -(-(context + length) // PAGE_SIZE)
        pages = [(num_used + index) % num_pages for index in range(end - first)]
        num_used += len(pages)
        tables.extend([-1] * first + pages + [-1] * (batch.num_pages_per_row - end))
        for place in range(context, context + length):
            slots.append(pages[place // PAGE_SIZE - first] * PAGE_SIZE + place % PAGE_SIZE)
    return msgspec.structs.replace(batch, window_slots=slots.tobytes(), window_page_tables=tables.tobytes())


def with_states(batch: Batch, states: tuple[int, int] | None) -> Batch:
    """Returns the step with a state slot for each row, stored at its last token; `states` is that of its runner."""
    if states is None:
        return batch
    sources, slots = array(INT32), array(INT32)
    rows = zip(unpack_int32(batch.query_lens), unpack_int32(batch.context_lens), strict=True)
    for row, (length, context) in enumerate(rows):
        sources.append(row if context else -1)
        slots.extend([-1] * (length - 1) + [row])
    return msgspec.structs.replace(batch, state_sources=sources.tobytes(), state_slots=slots.tobytes())


def prefill_flop(shape: dict[str, object], num_tokens: int, num_before: int = 0) -> int:
    """Returns the operations of `plan_prefill`'s step: only the last token reaches the head."""
    model = read_shape(shape, num_tokens)
    head = model.vocab_size * model.hidden_size
    attention = 4 * sum(attention.out_size for attention in attentions(model)) * (2 * num_before + num_tokens + 1) // 2
    return num_tokens * (2 * (weight_bytes(model, 1, 1) - head) + attention) + 2 * head


def step_bytes(shape: dict[str, object], num_rows: int, num_keys: int, weight_format: str = "bfloat16") -> float:
    """Returns what a step must at least read or write: the weights, and every row's K, V and states, in bfloat16."""
    model = read_shape(shape, num_keys)
    num_weights = weight_bytes(model, 1, num_rows)
    row_bytes = num_keys * kv_bytes(model, ITEMSIZE) + 2 * state_bytes(model, ITEMSIZE)
    return num_weights * WEIGHT_BITS[weight_format] / 8 + num_rows * row_bytes


def step_flop(shape: dict[str, object], num_rows: int, num_keys: int) -> int:
    """Returns the operations of a decode step: two for each weight and row, and attention's two products."""
    model = read_shape(shape, num_keys)
    attention = 4 * sum(attention.out_size for attention in attentions(model)) * num_keys
    return num_rows * (2 * weight_bytes(model, 1, 1) + attention)
