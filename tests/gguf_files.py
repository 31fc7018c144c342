"""GGUF files for tests, written byte by byte, so that each part of them can be damaged."""

import random
import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from runtime.gguf.block_types import BLOCK_TYPES

INT8, STRING, ARRAY = 1, 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMBERS = {block_type.name: number for number, block_type in BLOCK_TYPES.items()}


class Typed(NamedTuple):
    """A metadata value of a type other than that of its Python type; `kind` is the number in the format."""

    kind: int
    value: Any


class Stored(NamedTuple):
    """A tensor: its type's name or number, its shape with rows first, its bytes (default: zeros), and its offset."""

    type: str | int
    shape: Sequence[int]
    data: bytes | None = None
    offset: int | None = None


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Any) -> bytes:
    """Returns type and value: a list is an array, an int is of 32 bits without a sign, a float of 32 bits.

    Bytes of type `INT8` are an array of them.
    """
    match value:
        case Typed(1, bytes(data)):
            return struct.pack("<IIQ", ARRAY, INT8, len(data)) + data
        case Typed(kind, list(values)):
            return struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(_item(kind, each) for each in values)
        case Typed(kind, each):
            return struct.pack("<I", kind) + _item(kind, each)
        case list():
            return value_bytes(Typed(_kind_of(value[0]) if value else STRING, value))
        case _:
            return value_bytes(Typed(_kind_of(value), value))


def _kind_of(value: Any) -> int:
    return {bool: 7, int: 4, float: 6, str: STRING, bytes: STRING}[type(value)]


def _item(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(f"<{CODES[kind]}", value)


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, Stored] = {}, alignment: int = 32, version: int = 3
) -> bytes:
    """Returns the content of a file. With another alignment than 32, metadata must have `general.alignment`."""
    header = [struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))]
    header += [text(key) + value_bytes(value) for key, value in metadata.items()]
    data = b""
    for name, (kind, shape, content, offset) in tensors.items():
        number = NUMBERS[kind] if isinstance(kind, str) else kind
        place = len(data) if offset is None else offset
        header.append(text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, place))
        if content is None and number in BLOCK_TYPES and prod(shape) < 1 << 24:
            content = bytes(prod(shape) // BLOCK_TYPES[number].block_values * BLOCK_TYPES[number].block_bytes)
        data += content or b""
        data += bytes(-len(data) % alignment)
    joined = b"".join(header)
    return joined + bytes(-len(joined) % alignment) + data if tensors else joined


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Stored] = {}) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def write_model(path: Path, metadata: Mapping[str, Any] = {}, num_parts: int = 1) -> Path:
    """Writes a small Qwen2 with a tokenizer for bytes, in several files if asked; `metadata` is added to its own."""
    tensors, provided = _model_tensors(), {**MODEL_METADATA, **metadata}
    if num_parts == 1:
        return write_gguf(path, provided, tensors)
    for index in range(num_parts):
        split = {"split.no": Typed(2, index), "split.count": Typed(2, num_parts)}
        split["split.tensors.count"] = Typed(5, len(tensors))
        part = path.with_name(f"{path.stem}-{index + 1:05}-of-{num_parts:05}.gguf")
        own = {name: tensors[name] for name in list(tensors)[index::num_parts]}
        write_gguf(part, split if index else provided | split, own)
    return path.with_name(f"{path.stem}-00001-of-{num_parts:05}.gguf")


def _model_tensors() -> dict[str, Stored]:
    shapes = {f"attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    return {
        "token_embd.weight": Stored("Q8_0", (259, 32)),
        "output_norm.weight": Stored("F32", (32,)),
        **{f"blk.0.{name}.weight": Stored("Q4_0", shape) for name, shape in shapes.items()},
        **{f"blk.0.{name}.weight": Stored("F32", (32,)) for name in ("attn_norm", "ffn_norm")},
        **{f"blk.0.attn_{name}.bias": Stored("F32", (32,)) for name in "qkv"},
    }


def byte_tokens() -> list[str]:
    """Returns a token for each byte, as GPT-2 writes it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + others.index(byte)) for byte in range(256)]


BYTES = byte_tokens()
MODEL_METADATA: dict[str, Any] = {
    "general.architecture": "qwen2",
    "qwen2.block_count": 1,
    "qwen2.context_length": 96,
    "qwen2.embedding_length": 32,
    "qwen2.feed_forward_length": 64,
    "qwen2.attention.head_count": 2,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-6,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [*BYTES, "<|endoftext|>", "<|im_end|>", BYTES[0] + BYTES[1]],
    "tokenizer.ggml.token_type": Typed(5, [*[1] * 256, 3, 3, 1]),
    "tokenizer.ggml.merges": [f"{BYTES[0]} {BYTES[1]}"],
    "tokenizer.ggml.eos_token_id": 256,
}
"""The metadata of `write_model`."""

EXTREMES = [0, 1, 2, 3, 7, 8, 9, 31, 33, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 10**9, 1 << 60, 1 << 63, (1 << 64) - 1]


def mutated(rng: random.Random, whole: bytes, header_bytes: int) -> bytes:
    """Returns the content `whole` with one to four changes in its header."""
    content = bytearray(whole)
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(min(header_bytes, len(content)) or 1)
        match rng.randrange(7):
            case 0:
                content[place : place + 1] = rng.randbytes(1)
            case 1:
                content[place : place + 8] = struct.pack("<Q", rng.choice(EXTREMES))
            case 2:
                content[place : place + 4] = struct.pack("<I", rng.choice(EXTREMES) & 0xFFFFFFFF)
            case 3:
                del content[place : place + rng.randrange(1, 40)]
            case 4:
                content[place:place] = rng.randbytes(rng.randrange(1, 40))
            case 5:
                del content[max(1, rng.choice([place, len(content) - rng.randrange(1000)])) :]
            case _:
                other = rng.randrange(header_bytes)
                content[place : place + 16] = content[other : other + 16]
    return bytes(content)
