"""Thousands of mutated headers: each is read or refused with `BootError`, and none takes memory by its word."""

import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

from messages.errors import BootError
from runtime.gguf.conversion import list_tensors, read_config
from runtime.gguf.gguf_file import read_gguf
from tests.gguf_files import Stored, Typed, gguf_bytes, mutated

NUM_HEADERS = int(os.environ.get("SLUICE_MUTATED_HEADERS", "3000"))
MOST_BYTES = 4 << 20

LAYER = {
    "attn_norm.weight": Stored("F32", (64,)),
    "attn_q.weight": Stored("Q4_0", (64, 64)),
    "attn_k.weight": Stored("Q8_0", (32, 64)),
    "attn_v.weight": Stored("F16", (32, 64)),
    "attn_output.weight": Stored("Q5_1", (64, 64)),
    "ffn_norm.weight": Stored("F32", (64,)),
    "ffn_gate.weight": Stored("IQ4_NL", (96, 64)),
    "ffn_up.weight": Stored("Q4_1", (96, 64)),
    "ffn_down.weight": Stored("MXFP4", (64, 96)),
}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 1e6,
    "tokenizer.ggml.tokens": [f"token{index}" for index in range(40)],
    "tokenizer.ggml.scores": [-0.5] * 40,
    "tokenizer.ggml.token_type": Typed(5, [1] * 40),
    "tokenizer.ggml.add_bos_token": True,
    "split.count": Typed(2, 1),
    "llama.vocab_size": Typed(10, 40),
}
CONTENT = gguf_bytes(
    METADATA,
    {
        "token_embd.weight": Stored("Q8_0", (40, 64)),
        "output_norm.weight": Stored("F32", (64,)),
        "rope_freqs.weight": Stored("F32", (8,), 8 * b"\x00\x00\x80\x3f"),
        **{f"blk.0.{name}": tensor for name, tensor in LAYER.items()},
    },
)
HEADER_BYTES = CONTENT.index(b"blk.0.ffn_down.weight") + 64


def read_all(path: Path) -> None:
    file = read_gguf(path)
    for key in file.metadata:
        try:
            _ = file.metadata[key]
        except BootError:
            continue
    read_config(file)
    list_tensors(file)


def test_mutated_headers(tmp_path: Path):
    path, rng = tmp_path / "m.gguf", random.Random(38)
    path.write_bytes(CONTENT)
    read_all(path)
    num_refused = num_unnamed = 0
    tracemalloc.start()
    try:
        for _ in range(NUM_HEADERS):
            path.write_bytes(mutated(rng, CONTENT, HEADER_BYTES))
            try:
                read_all(path)
            except BootError as error:
                num_refused += 1
                num_unnamed += not str(error).startswith(str(path))
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    assert num_unnamed == 0
    assert NUM_HEADERS // 2 < num_refused < NUM_HEADERS
