"""Damaged files of a model end in one line that names the file, whatever is wrong in them."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from messages.config.server import ModelConfig
from messages.errors import SluiceError
from runtime.adapter_files import read_digest
from runtime.pooling_files import read_pooling_facts
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.load_runner import load_models
from scheduler_proc.computing.loading.adapters.read_adapter import read_adapter
from scheduler_proc.computing.loading.adapters.targets import find_targets
from scheduler_proc.computing.model.families.registry import find_family
from supervisor.model.facts import read_model_facts
from tests.checkpoints import CONTEXT, build_checkpoint, make_config
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import make_adapter

NESTED: Any = []
for _ in range(200):
    NESTED = [NESTED]
JUNK: list[Any] = [
    *(None, True, -1, 0, 1, 3, 10**6, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), 0.5),
    *("", "x", "\ud800", "../x", "a" * 100_000, [], [[]], {}, {"": None}, {"a": {"a": []}}, [1, "a", None], NESTED),
]
NUM_MUTATIONS = 16
MAX_ERROR_CHARS = 3000


def mutated(fields: Any, chooser: random.Random) -> Any:
    """Returns the value with one of its parts, at any depth, replaced, removed or renamed."""
    if isinstance(fields, dict) and fields and chooser.random() < 0.9:
        key = chooser.choice(sorted(fields))
        match chooser.randrange(10):
            case 0:
                return {name: value for name, value in fields.items() if name != key}
            case 1:
                return {(f"{name}x" if name == key else name): value for name, value in fields.items()}
            case 2 | 3 | 4 if isinstance(fields[key], dict | list):
                return fields | {key: mutated(fields[key], chooser)}
            case _:
                return fields | {key: chooser.choice(JUNK)}
    if isinstance(fields, list) and fields and chooser.random() < 0.8:
        index = chooser.randrange(len(fields))
        return [*fields[:index], mutated(fields[index], chooser), *fields[index + 1 :]]
    return chooser.choice(JUNK)


def mutations(file: Path, has_header: bool = False) -> Iterator[None]:
    """Damages a file of JSON, or the header of safetensors, in several ways, one after another, and restores it."""
    whole, chooser = file.read_bytes(), random.Random(file.name)
    begin, end = (8, 8 + int.from_bytes(whole[:8], "little")) if has_header else (0, len(whole))
    for number in range(NUM_MUTATIONS):
        if number % 8 == 7:
            file.write_bytes(whole[: chooser.randrange(len(whole))])
        else:
            text = json.dumps(mutated(json.loads(whole[begin:end]), chooser)).encode()
            file.write_bytes((len(text).to_bytes(8, "little") if has_header else b"") + text + whole[end:])
        yield
    file.write_bytes(whole)


def check(read: Callable[[], object]) -> bool:
    """True if the files are refused; any error but ours, or one that shows all of a file, is a failure."""
    try:
        read()
    except SluiceError as error:
        text = str(error)
    else:
        return False
    assert len(text) < MAX_ERROR_CHARS, text[:200]
    return True


@pytest.mark.parametrize("variant", ["llama-llama3", "nemotron-h-experts"])
def test_damaged_files_of_a_model_are_refused(tmp_path: Path, variant: str) -> None:
    build_checkpoint(tmp_path, variant)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "eos_token_id": [1, 2]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "chat_template": ["a"]}')
    config = make_config(tmp_path, num_pages=4)
    num_refused = 0
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors"):
        for _ in mutations(tmp_path / name, has_header=name.endswith(".safetensors")):
            num_refused += check(lambda: read_model_facts(ModelConfig(model=str(tmp_path)), tmp_path, tmp_path, "m"))
            if name in ("config.json", "model.safetensors"):
                num_refused += check(lambda: load_models(config, lambda *_: None))
    assert num_refused > NUM_MUTATIONS


def test_damaged_files_of_vectors_are_refused(tmp_path: Path) -> None:
    kinds = "Transformer", "Pooling", "Dense", "Normalize"
    modules = [{"path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    files: dict[str, Any] = {
        "modules.json": modules,
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True, "pooling_mode": "mean", "include_prompt": True},
        "2_Dense/config.json": {"in_features": 8, "out_features": 4, "bias": False, "activation_function": "Tanh"},
        "config_sentence_transformers.json": {"prompts": {"query": "q"}, "default_prompt_name": "query"}
        | {"similarity_fn_name": "dot", "truncate_dim": 3, "activation_fn": "torch.nn.Sigmoid"},
        "sentence_bert_config.json": {"max_seq_length": 64, "do_lower_case": False},
        "config.json": {"architectures": ["BertForSequenceClassification"], "model_type": "bert", "pad_token_id": 1}
        | {"id2label": {"0": "a"}, "num_labels": 1, "classifier_pooling": "cls", "max_position_embeddings": 64}
        | {"problem_type": "regression", "vocab_size": 99, "sentence_transformers": {"activation_fn": "x"}},
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert read_pooling_facts(tmp_path, files["config.json"]) is not None
    num_refused = 0
    for name in files:
        for _ in mutations(tmp_path / name):
            num_refused += check(lambda: read_model_facts(ModelConfig(model=str(tmp_path)), tmp_path, tmp_path, "m"))
    assert num_refused > NUM_MUTATIONS


def test_damaged_files_of_an_adapter_are_refused(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path / "model", "llama-gqa-tied")
    case = make_adapter(model, 4, rank_pattern={"q_proj": 2}, alpha_pattern={"^model.layers.0.mlp.up_proj": 3})
    path, hf_config = case.write(tmp_path / "adapter"), read_hf_config(tmp_path / "model")
    family = find_family(hf_config)
    targets = find_targets(family, family.describe(hf_config, CONTEXT))
    assert not check(lambda: read_adapter(path, targets, torch.float32, 8))
    num_refused = 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        for _ in mutations(tmp_path / "adapter" / name, has_header=name.endswith(".safetensors")):
            if check(lambda: read_adapter(path, targets, torch.float32, 8)):
                num_refused += 1
                continue
            assert read_digest(path)
    assert num_refused > NUM_MUTATIONS
