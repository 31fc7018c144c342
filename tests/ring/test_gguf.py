"""A server of one file in GGUF: the text of the model that it was made of, whatever happens to processes and file."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from tests.gguf_files import Stored, Typed, write_gguf
from tests.ring.client import BARD_DIR, RingClient, body, ignore
from tests.ring.test_restart import Killer

pytestmark = pytest.mark.ring

NUM_TOKENS = 64
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "h": "blk", "ln_1": "attn_norm"}
NAMES |= {"ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up"}
NAMES |= {"mlp.c_proj": "ffn_down"}
CASES: list[dict[str, Any]] = json.loads((BARD_DIR / "golden.json").read_text())["cases"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as llama.cpp's converter would write it."""
    return write_bard(tmp_path_factory.mktemp("gguf") / "bard.gguf")


@pytest.fixture(scope="module")
def ring(file: Path, start_ring: Callable[..., RingClient]) -> Iterator[RingClient]:
    ring = start_ring(file, "--dtype", "float32", "--max-restarts-per-min", "100")
    yield ring
    shutil.rmtree(ring.run_dir.read_config().facts.model_dir)  # from the user's cache, which has the kernels, too


def write_bard(path: Path, form: str = "F16") -> Path:
    """Writes the model with matrices in F16 or Q8_0."""
    config = json.loads((BARD_DIR / "config.json").read_text())
    tokenizer = json.loads((BARD_DIR / "tokenizer.json").read_text())["model"]
    tokens = sorted(tokenizer["vocab"], key=tokenizer["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["merges"]]
    metadata: dict[str, Any] = {
        "general.architecture": "gpt2",
        "gpt2.block_count": config["n_layer"],
        "gpt2.context_length": config["n_positions"],
        "gpt2.embedding_length": config["n_embd"],
        "gpt2.feed_forward_length": 4 * config["n_embd"],
        "gpt2.attention.head_count": config["n_head"],
        "gpt2.attention.layer_norm_epsilon": config["layer_norm_epsilon"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": Typed(5, [3, *[1] * (len(tokens) - 1)]),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    tensors: dict[str, Stored] = {}
    for name, tensor in load_file(BARD_DIR / "model.safetensors").items():
        stem = name.removeprefix("transformer.")
        for theirs, ours in NAMES.items():
            stem = f".{stem}".replace(f".{theirs}.", f".{ours}.")[1:]
        rows = tensor.T if ".c_" in name and tensor.dim() == 2 else tensor
        is_matrix = tensor.dim() == 2 and stem != "position_embd.weight"
        data = (rows.half() if is_matrix else rows.float()).contiguous().view(torch.uint8)
        if is_matrix and form == "Q8_0":
            data = quantize(rows.float())
        tensors[stem] = Stored(form if is_matrix else "F32", tuple(rows.shape), data.numpy().tobytes())
    return write_gguf(path, metadata, tensors)


def quantize(rows: Tensor) -> Tensor:
    """Returns blocks of 32 inputs: a float16 scale and codes of 8 bits."""
    groups = rows.unflatten(1, (-1, 32))
    scale = (groups.abs().amax(-1, keepdim=True) / 127).half()
    codes = (groups / scale.float().clamp(min=1e-8)).round().to(torch.int8)
    return torch.cat((scale.view(torch.uint8), codes.view(torch.uint8)), dim=2)


def check(ring: RingClient, on_tokens: Callable[[int], None] = ignore) -> None:
    decode = Tokenizer.from_file(str(BARD_DIR / "tokenizer.json")).decode
    requests = [body(case["prompt"], max_tokens=NUM_TOKENS, ignore_eos=True) for case in CASES]
    replies = ring.generate_all(requests, on_tokens)
    for case, reply in zip(CASES, replies, strict=True):
        expected = case["output_ids"][:NUM_TOKENS]
        assert (reply.token_ids, reply.text) == (expected, decode(expected)), case["prompt"]


def test_the_text_is_the_models(ring: RingClient):
    check(ring)


def test_the_model_is_named_after_the_file(ring: RingClient):
    assert ring.run_dir.read_config().facts.served_names == ("bard",)


def test_text_survives_processes_and_the_file(ring: RingClient, file: Path):
    for process in ("tokenizer", "detokenizer", "scheduler"):
        killer = Killer(ring, process, (3 * NUM_TOKENS,), signal.SIGKILL)
        check(ring, killer)  # in mid-stream
        assert killer.num_restarts == 1
        ring.wait_for_restart(process, 1)
    file.unlink()
    check(ring)
    ring.wait_for_restart("tokenizer", ring.kill("tokenizer", signal.SIGKILL, num_restarts=1))
    check(ring)


def test_text_of_weights_in_blocks_survives_the_scheduler(tmp_path: Path, start_ring: Callable[..., RingClient]):
    ring = start_ring(write_bard(tmp_path / "blocks.gguf", "Q8_0"), "--dtype", "float32")
    try:
        requests = [body(case["prompt"], max_tokens=NUM_TOKENS, ignore_eos=True) for case in CASES]
        expected = ring.generate_all(requests, ignore)
        killer = Killer(ring, "scheduler", (3 * NUM_TOKENS,), signal.SIGKILL)
        replies = ring.generate_all(requests, killer)  # in mid-stream
        assert killer.num_restarts == 1
        assert [(reply.token_ids, reply.text) for reply in replies] == [
            (reply.token_ids, reply.text) for reply in expected
        ]
        ring.wait_for_restart("scheduler", 1)  # it reads the directory
    finally:
        shutil.rmtree(ring.run_dir.read_config().facts.model_dir)
