"""Makes large JSON documents in another thread, in pieces: the event loop continues between them."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from frontend.requests.generation import Generation

FEW_VALUES = 1 << 14
"""Numbers or logprobs that the event loop encodes itself, in some milliseconds."""

PIECE = 1 << 10
"""Items of a list that are encoded at once."""

_encoder = msgspec.json.Encoder()
_thread = ThreadPoolExecutor(1, "large-reply")
"""One thread: two would leave the event loop a third of its core."""


async def make_document(content: Callable[[], Any], choices: Sequence[Generation]) -> Any:
    """Returns the document from `content`, as JSON already if it has many values."""
    if sum(map(_count_values, choices)) <= FEW_VALUES:
        return content()
    return await asyncio.get_running_loop().run_in_executor(_thread, lambda: Raw(encode(content())))


def _count_values(choice: Generation) -> int:
    params, prompt = choice.message.sampling_params, choice.prompt
    num_logprobs = len(choice.logprobs) * (1 + (params.num_logprobs or 0))
    num_prompt = 0 if prompt is None else len(prompt.tokens) * (1 + (params.num_prompt_logprobs or 0))
    return num_logprobs + num_prompt + (0 if choice.pooled is None else len(choice.pooled.values) // 4)


def encode(value: Any) -> bytes:
    """Returns `value` as JSON, in steps that take less than some milliseconds each."""
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        if not items or not isinstance(items[0], list | tuple | dict | msgspec.Struct):
            pieces = [_encoder.encode(items[start : start + PIECE])[1:-1] for start in range(0, len(items), PIECE)]
            return b"[" + b",".join(pieces) + b"]"
        return b"[" + b",".join([encode(item) for item in items]) + b"]"
    if isinstance(value, dict) and all(isinstance(name, str) for name in cast("dict[Any, Any]", value)):
        return _object(list(cast("dict[str, Any]", value).items()))
    if isinstance(value, msgspec.Struct):
        config = type(value).__struct_config__
        if not (config.array_like or config.omit_defaults or config.tag is not None):
            names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            return _object([(name, getattr(value, field)) for name, field in names])
    return _encoder.encode(value)


def _object(fields: list[tuple[str, Any]]) -> bytes:
    pieces = [_encoder.encode(name) + b":" + encode(value) for name, value in fields if value is not UNSET]
    return b"{" + b",".join(pieces) + b"}"
