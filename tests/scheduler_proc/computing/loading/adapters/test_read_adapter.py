"""Reading of adapters: names that trainers write, and files that are refused with the reason."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from runtime.adapter_files import AdapterError
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading import module_patterns
from scheduler_proc.computing.loading.adapters.peft_config import read_peft_config
from scheduler_proc.computing.loading.adapters.read_adapter import read_adapter
from scheduler_proc.computing.loading.adapters.targets import Targets, find_targets
from scheduler_proc.computing.model.adapters import HostAdapter
from scheduler_proc.computing.model.families.registry import find_family
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint
from tests.scheduler_proc.computing.loading.adapters.adapter_cases import PREFIX, AdapterCase, make_adapter

Q_PROJ = "model.layers.0.self_attn.q_proj"
Change = Callable[[AdapterCase], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> "transformers.PreTrainedModel":
    return build_checkpoint(tmp_path_factory.mktemp("model"), "llama-gqa-tied")


def targets_of(hf_config: HfConfig) -> Targets:
    family = find_family(hf_config)
    return find_targets(family, family.describe(hf_config, CONTEXT))


@pytest.fixture(scope="module")
def targets(model: "transformers.PreTrainedModel") -> Targets:
    return targets_of(HfConfig(model.config.to_dict()))


def read(path: Path, case: AdapterCase, targets: Targets, dtype: torch.dtype = torch.float32) -> HostAdapter:
    return read_adapter(case.write(path), targets, dtype, 8)


def put(case: AdapterCase, name: str, tensor: Tensor) -> None:
    case.tensors[f"{PREFIX}{name}"] = tensor


def renamed(case: AdapterCase, change: Callable[[str], str]) -> AdapterCase:
    return AdapterCase(case.config, {change(name): tensor for name, tensor in case.tensors.items()})


@pytest.mark.parametrize(
    "change",
    [
        lambda name: name,
        lambda name: name.removeprefix(PREFIX),
        lambda name: name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."),
        lambda name: name.replace(".model.layers", ".layers"),
        lambda name: name.replace(".model.layers", ".model.language_model.layers"),
        lambda name: name.replace(".model.layers", ".language_model.model.layers"),
        lambda name: name.replace("model.layers", "_orig_mod.model.layers"),
    ],
    ids=["PEFT's", "no prefix", "adapter's name", "bare decoder", "language model", "older language model", "compiled"],
)
def test_names_that_trainers_write(
    tmp_path: Path, model: "transformers.PreTrainedModel", targets: Targets, change: Callable[[str], str]
) -> None:
    case = make_adapter(model, 4)
    adapter = read(tmp_path, renamed(case, change), targets)
    assert adapter.rank == 4
    assert adapter.linears.keys() == targets.linears.keys()
    query, key, _ = adapter.linears["layers.0.qkv"]
    assert query is not None
    assert key is not None
    assert torch.equal(query.a, case.tensors[f"{PREFIX}{Q_PROJ}.lora_A.weight"])
    assert torch.equal(query.b.T, case.tensors[f"{PREFIX}{Q_PROJ}.lora_B.weight"])
    assert query.scale == 2.0
    assert adapter.num_bytes == sum(tensor.nbytes for tensor in case.tensors.values())


def test_modules_without_an_update_take_no_memory(
    tmp_path: Path, model: "transformers.PreTrainedModel", targets: Targets
) -> None:
    adapter = read(tmp_path, make_adapter(model, 2, modules=["0.self_attn.v_proj"]), targets, torch.bfloat16)
    assert list(adapter.linears) == ["layers.0.qkv"]
    query, key, value = adapter.linears["layers.0.qkv"]
    assert query is key is None
    assert value is not None
    assert value.a.dtype == value.b.dtype == torch.bfloat16


NAN = float("nan")
WRONG_FILES: dict[str, tuple[Change, str]] = {
    "of another model": (lambda case: put(case, f"{Q_PROJ}.lora_A.weight", torch.ones(4, 65)), "expected [4, 64]"),
    "another rank": (lambda case: case.config.update(r=3), "expected [3, 88], got [4, 88]"),
    "half an update": (lambda case: case.tensors.pop(f"{PREFIX}{Q_PROJ}.lora_B.weight"), "lora_B is missing"),
    "NaN": (lambda case: case.tensors[f"{PREFIX}{Q_PROJ}.lora_B.weight"].fill_(NAN), "NaN or infinite in float32"),
    "integers": (
        lambda case: put(case, f"{Q_PROJ}.lora_A.weight", torch.ones(4, 64, dtype=torch.int8)),
        "floating-point",
    ),
    "another layer": (
        lambda case: put(case, "model.layers.7.mlp.up_proj.lora_A.weight", torch.ones(4, 64)),
        "no place for: base_model.model.model.layers.7.mlp.up_proj.lora_A.weight",
    ),
    "a norm": (lambda case: put(case, "model.norm.weight", torch.ones(64)), "trained norms; merge the adapter"),
    "a saved norm": (
        lambda case: put(case, "model.layers.0.input_layernorm.modules_to_save.weight", torch.ones(64)),
        "trained norms; merge the adapter",
    ),
    "a bias": (lambda case: put(case, f"{Q_PROJ}.lora_B.bias", torch.ones(64)), "biases of updates"),
    "magnitudes": (lambda case: put(case, f"{Q_PROJ}.lora_magnitude_vector", torch.ones(64)), "DoRA"),
    "single embeddings": (
        lambda case: put(case, "model.embed_tokens.token_adapter.trainable_tokens_delta", torch.ones(2, 64)),
        "single tokens",
    ),
    "two names": (lambda case: put(case, f"{Q_PROJ}.lora_A.default.weight", torch.ones(4, 64)), "two tensors"),
    "a resized vocabulary": (
        lambda case: put(case, "model.embed_tokens.weight", torch.ones(VOCAB_SIZE + 1, 64)),
        f"expected [{VOCAB_SIZE}, 64], got [{VOCAB_SIZE + 1}, 64]: its vocabulary was resized in training; merge",
    ),
    "two copies": (
        lambda case: (
            put(case, "model.embed_tokens.base_layer.weight", torch.ones(VOCAB_SIZE, 64)),
            put(case, "model.module.embed_tokens.base_layer.weight", torch.ones(VOCAB_SIZE, 64)),
        ),
        "two tensors",
    ),
    "a whole head and an update": (
        lambda case: (
            put(case, "lm_head.weight", torch.ones(VOCAB_SIZE, 64)),
            put(case, "lm_head.lora_A.weight", torch.ones(4, 64)),
        ),
        "both a whole matrix and an update",
    ),
    "nothing": (lambda case: case.tensors.clear(), "has no tensors"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_weights_file_is_refused(
    tmp_path: Path, model: "transformers.PreTrainedModel", targets: Targets, name: str
) -> None:
    change, message = WRONG_FILES[name]
    case = make_adapter(model, 4)
    change(case)
    with pytest.raises(AdapterError) as refusal:
        read(tmp_path, case, targets)
    assert message in str(refusal.value)


def test_values_that_the_number_format_cannot_hold_are_refused(
    tmp_path: Path, model: "transformers.PreTrainedModel", targets: Targets
) -> None:
    case = make_adapter(model, 4)
    case.tensors[f"{PREFIX}{Q_PROJ}.lora_A.weight"][0, 0] = 1e6
    read(tmp_path, case, targets, torch.bfloat16)
    with pytest.raises(AdapterError, match="infinite in float16"):
        read(tmp_path, case, targets, torch.float16)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "header of 0 bytes|damaged"),
        (b"\x08\0\0\0\0\0\0\0{}      ", "no tensors"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", "too large"),
        ((17 << 20).to_bytes(8, "little") + b" " * (18 << 20), "too large"),
        (b"\x80\x02}q\x00.", "too large|damaged"),
        (b'\x0a\0\0\0\0\0\0\0{"a":[1,2]', "damaged"),
    ],
    ids=["empty", "no tensors", "endless header", "huge header", "pickled", "not of tensors"],
)
def test_a_damaged_weights_file_is_refused(tmp_path: Path, targets: Targets, data: bytes, message: str) -> None:
    AdapterCase({"peft_type": "LORA", "r": 4, "lora_alpha": 8}).write(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(data)
    with pytest.raises(AdapterError, match=message):
        read_adapter(str(tmp_path), targets, torch.float32, 8)


FIELDS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "VERA"}, "peft_type is 'VERA'"),
    ({"peft_type": None}, "peft_type is None"),
    ({"r": 16}, "rank 16 is not one of 1 to 8"),
    ({"r": 0}, "r is 0"),
    ({"r": True}, "r is True"),
    ({"r": 2.5}, "rank 2.5"),
    ({"r": "4"}, "r is '4'"),
    ({"lora_alpha": NAN}, "lora_alpha is nan"),
    ({"rank_pattern": {"q_proj": 300}}, "rank 300"),
    ({"rank_pattern": ["q_proj"]}, "rank_pattern is not an object"),
    ({"alpha_pattern": {"q_proj": "x"}}, "q_proj is 'x'"),
    ({"use_dora": True}, "DoRA"),
    ({"bias": "lora_only"}, "biases"),
    ({"lora_bias": True}, "biases"),
    ({"alora_invocation_tokens": [1, 2]}, "aLoRA"),
    ({"target_parameters": ["experts.gate_up_proj"]}, "experts"),
    ({"trainable_token_indices": [1]}, "single tokens"),
    ({"layer_replication": [[0, 4], [2, 5]]}, "number of layers"),
    ({"init_lora_weights": "pissa_niter_16"}, "base model's weights were changed"),
    ({"init_lora_weights": "loftq"}, "base model's weights were changed"),
    ({"use_qalora": True}, "QA-LoRA"),
    ({"use_something_new": True}, "unknown fields: 'use_something_new'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG_FIELDS, ids=lambda value: json.dumps(value)[:40])
def test_fields_that_change_what_is_computed_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError) as refusal:
        read_peft_config(FIELDS | fields, 8)
    assert message in str(refusal.value)


def test_scales_are_pefts() -> None:
    """A pattern matches the end of a module's name, the first one counts; `^` pins its beginning."""
    patterns = {"rank_pattern": {"q_proj": 2, r"1\..*_proj": 4}, "alpha_pattern": {"^model.layers.1.mlp.up_proj": 5}}
    fields = FIELDS | {"use_rslora": True, "init_lora_weights": "gaussian"}
    modules = ["model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj", "model.layers.0.mlp.up_proj"]
    config = read_peft_config(fields | patterns, 8).of_modules(modules)
    expected = [pytest.approx(8 / 2**0.5), pytest.approx(5 / 4**0.5), pytest.approx(8 / 4**0.5)]
    assert [config.scale_of(module) for module in modules] == expected
    assert read_peft_config(FIELDS, 8).of_modules(modules).scale_of(modules[0]) == 2.0


def test_keys_that_are_names_need_no_regular_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, as PEFT's `re.match(rf"(.*\\.)?({key})$")` finds them."""
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    keys = ["1.mlp.up_proj", "up_proj", "proj", "^model.layers.0.mlp.down_proj", "^down_proj", "down_proj"]
    fields = FIELDS | {"rank_pattern": {key: index + 1 for index, key in enumerate(keys)}}
    modules = [f"model.layers.{layer}.mlp.{name}" for layer in (0, 1) for name in ("up_proj", "down_proj", "xup_proj")]
    config = read_peft_config(fields, 8).of_modules(modules)
    found = [next((key for key in keys if re.match(rf"(.*\.)?({key})$", module)), None) for module in modules]
    assert [config.rank_of(module) for module in modules] == [keys.index(key) + 1 if key else 4 for key in found]


@pytest.mark.parametrize(
    ("key", "message"),
    [("(", "it is not a regular expression"), ("(.+)+!", "1 s of CPU time"), ("x|" * 1000, "1024 characters")],
)
def test_bad_and_endless_patterns_are_refused(monkeypatch: pytest.MonkeyPatch, key: str, message: str) -> None:
    monkeypatch.setattr(module_patterns, "MAX_CPU_S", 1)
    config = read_peft_config(FIELDS | {"alpha_pattern": {key: 1}}, 8)
    with pytest.raises(AdapterError, match=f"alpha_pattern: .*{message}"):
        config.of_modules([Q_PROJ, f"{Q_PROJ}.{'a' * 64}"])


@pytest.mark.parametrize(
    ("variant", "module"),
    [
        ("qwen3moe", "model.layers.1.mlp.experts.3.up_proj"),
        ("qwen3moe", "model.layers.1.mlp.gate"),
        ("qwen3moe", "model.layers.1.mlp.experts"),
    ],
)
def test_experts_are_refused_by_name(tmp_path: Path, variant: str, module: str) -> None:
    model = build_checkpoint(tmp_path / "model", variant)
    case = make_adapter(model, 4, modules=["q_proj"])
    put(case, f"{module}.lora_A.weight", torch.ones(4, 64))
    with pytest.raises(AdapterError, match="experts"):
        read(tmp_path / "adapter", case, targets_of(read_hf_config(tmp_path / "model")))


def test_recurrent_layers_of_a_gguf_file_with_heads_in_another_order_are_refused(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path / "model", "qwen3_5")
    case = make_adapter(model, 4, modules=["out_proj"])
    fields = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    read(tmp_path / "adapter", case, targets_of(HfConfig(fields)))
    with pytest.raises(AdapterError, match="GGUF"):
        read(tmp_path / "adapter", case, targets_of(HfConfig(fields | {"has_tiled_value_heads": True})))
