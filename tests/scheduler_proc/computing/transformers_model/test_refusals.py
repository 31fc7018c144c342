"""What transformers' code cannot serve here is refused by name, before the server starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file
from transformers.utils.import_utils import KERNELS_MIN_VERSION

from messages.errors import BootError
from scheduler_proc.computing.load_runner import load_runner
from tests.checkpoints import CONTEXT, MLA, VOCAB_SIZE, build_checkpoint, make_config

ROOT = Path(__file__).parents[4]
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MIXED = {"layer_types": ["full_attention", "conv"]}
CHUNKS = {"attention_chunk_size": 16, "head_dim": 16, "intermediate_size_mlp": 88}
SPARSE = MLA | {"index_topk": 8, "index_n_heads": 2, "index_head_dim": 16, "num_key_value_heads": 4}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONGROPE |= {"original_max_position_embeddings": 64}


def start(path: Path, model_type: str, **flags: Any) -> None:
    load_runner(make_config(path, **({"load_format": "dummy"} | flags)), lambda text, fraction: None)


def write_config(path: Path, model_type: str, **fields: Any) -> None:
    hf_config = transformers.AutoConfig.for_model(model_type, **(SHAPE | fields))
    hf_config.save_pretrained(path)
    saved = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(SHAPE | saved))


@pytest.mark.parametrize(
    ("model_type", "fields", "reason"),
    [
        ("falcon", {}, "the attention of FalconForCausalLM cannot be replaced"),
        ("bloom", {}, "the attention of BloomForCausalLM cannot be replaced"),
        ("mpt", {}, "the attention of MptForCausalLM cannot be replaced"),
        ("mamba", {}, "MambaForCausalLM keeps a state of earlier tokens"),
        ("rwkv", {}, "RwkvForCausalLM keeps a state of earlier tokens"),
        ("jamba", {}, "JambaForCausalLM keeps a state of earlier tokens"),
        ("lfm2", MIXED, r"layer 1 \(Lfm2DecoderLayer\) does not call attention"),
        ("t5", {}, "is an encoder and a decoder"),
        ("vit", {}, "has no decoder of this type"),
        ("bert", {}, "its attention mask is neither causal nor a sliding window"),
        ("llama4_text", CHUNKS, "its attention mask is neither causal nor a sliding window"),
        ("doge", {}, r"attention call 0 \(DogeAttention\) has a mask of its own"),
        ("deepseek_v32", SPARSE, r"has the argument indices \(a tensor"),
        ("starcoder2", {"rope_parameters": LONGROPE}, "lower --max-model-len to 64"),
        ("starcoder2", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "has a quantization_config"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models(tmp_path: Path, model_type: str, fields: dict[str, Any], reason: str) -> None:
    write_config(tmp_path, model_type, **fields)
    with pytest.raises(BootError, match=reason):
        start(tmp_path, model_type, model_impl="transformers")


def test_chunks_are_served_in_a_context_of_one(tmp_path: Path) -> None:
    write_config(tmp_path, "llama4_text", **CHUNKS)
    start(tmp_path, "llama4_text", max_model_len=16)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"quantization": "int8"}, "--quantization int8"),
        ({"load_format": "gguf"}, "--load-format gguf"),
        ({"model_impl": "native"}, "Starcoder2ForCausalLM, which is not supported"),
    ],
    ids=str,
)
def test_flags(tmp_path: Path, flags: dict[str, Any], reason: str) -> None:
    write_config(tmp_path, "starcoder2", architectures=["Starcoder2ForCausalLM"])
    with pytest.raises(BootError, match=reason):
        start(tmp_path, "starcoder2", **flags)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    code = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    (tmp_path / "config.json").write_text(json.dumps(SHAPE | {"model_type": "own", "auto_map": code}))
    (tmp_path / "configuration_own.py").write_text("raise AssertionError('this code has been run')")
    with pytest.raises(BootError, match="this server runs no code of a checkpoint"):
        start(tmp_path, "own")


def test_missing_weights(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt_neox")
    weights = load_file(tmp_path / "model.safetensors")
    del weights["gpt_neox.layers.1.attention.dense.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(BootError, match=r"1 missing_keys: gpt_neox.layers.1.attention.dense.weight"):
        start(tmp_path, "gpt_neox", load_format="auto")


@pytest.mark.timeout(300)
def test_no_kernels_of_the_hub_are_used_whatever_is_installed_or_named(tmp_path: Path) -> None:
    """With a distribution `kernels`, transformers would import its names from our package."""
    build_checkpoint(tmp_path / "model", "gpt_neox")
    config_file = tmp_path / "model" / "config.json"
    named = dict.fromkeys(("attn_implementation", "experts_implementation"), "owner/repo")
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | named))
    facts = tmp_path / "site" / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    (facts / "top_level.txt").write_text("kernels\n")
    code = (
        "from transformers.utils import is_kernels_available; print(is_kernels_available())\n"
        f"from {__name__} import start, Path; start(Path({str(tmp_path / 'model')!r}), '', load_format='auto')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path / "site")))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.stdout.startswith("True\n"), "transformers takes it for Hugging Face's"
    assert (done.returncode, done.stderr[-400:]) == (0, "")
