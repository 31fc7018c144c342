"""Hashes of the prompt blocks that each engine was sent recently: an estimate of its prefix cache."""

import struct
from collections.abc import Sequence

import msgspec

from messages.ring.images import ImageInput
from messages.ring.requests import TokenizeMsg

BLOCK_BYTES = 256
"""Bytes of the prompt as sent: UTF-8 text, JSON of a chat, or 64 token ids. Short, because chats begin with little."""

MAX_KEYS = 1024
"""Maximum blocks that are hashed per prompt, which takes at most about 0.5 ms."""

MAX_BLOCKS = 65_536
"""Maximum blocks that are remembered per engine, about 6 MiB."""

IMAGE_PART = b'{"type":"image"}'
"""In JSON. In a text, quotation marks are escaped."""

_pack = struct.Struct("<q").pack


def block_keys(message: TokenizeMsg) -> list[int]:
    """Returns one hash per whole block of the prompt; each covers the block and everything before it.

    Hashes are only valid within this process. Prompts of different kinds or with different `cache_salt` share none.
    """
    if message.chat is not None:
        form, data = (
            msgspec.structs.replace(message.chat, messages=b""),
            _with_digests(message.chat.messages, message.images),
        )
    elif message.prompt_text is not None:
        form, data = "text", message.prompt_text[: BLOCK_BYTES * MAX_KEYS].encode(errors="replace")
    else:
        form, data = "ids", message.prompt_ids
    key = hash((form, message.sampling_params.cache_salt))
    keys: list[int] = []
    for begin in range(0, min(len(data), BLOCK_BYTES * MAX_KEYS) - BLOCK_BYTES + 1, BLOCK_BYTES):
        key = hash(_pack(key) + data[begin : begin + BLOCK_BYTES])
        keys.append(key)
    return keys


def _with_digests(messages: bytes, images: Sequence[ImageInput]) -> bytes:
    """Returns the JSON of a chat with the digest of each image in its place: the beginning that is hashed."""
    for image in images:
        messages = messages[: BLOCK_BYTES * MAX_KEYS]
        messages = messages.replace(IMAGE_PART, image.digest, 1)
    return messages


class PrefixIndex:
    """The blocks that each engine was sent, with least recently used blocks evicted."""

    def __init__(self, max_blocks: int = MAX_BLOCKS):
        self._max_blocks = max_blocks
        self._blocks: dict[int, dict[int, None]] = {}
        """By engine, in order of use, the latest last."""

    def count_match(self, engine: int, keys: Sequence[int]) -> int:
        """Returns the number of leading blocks that the engine has been sent."""
        blocks = self._blocks.get(engine, {})
        for num_known, key in enumerate(keys):
            if key not in blocks:
                return num_known
        return len(keys)

    def add(self, engine: int, keys: Sequence[int]) -> None:
        """Records that the engine is sent these blocks. The first is added last, so that it outlives its successors."""
        blocks = self._blocks.setdefault(engine, {})
        for key in reversed(keys):
            blocks.pop(key, None)
            blocks[key] = None
        while len(blocks) > self._max_blocks:
            del blocks[next(iter(blocks))]

    def forget(self, engine: int) -> None:
        """Forgets the engine's blocks: its cache is empty."""
        self._blocks.pop(engine, None)
