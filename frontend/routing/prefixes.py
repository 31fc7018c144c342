"""Which prompts each engine has been sent of late, by hashes of their blocks: what its prefix cache may hold."""

import struct
from collections.abc import Sequence

import msgspec

from messages.ring.requests import TokenizeMsg

BLOCK_BYTES = 256
"""Of the prompt as it is sent: text in UTF-8, a chat in JSON, or 64 token ids. Short, as the beginning of a chat is."""

MAX_KEYS = 1024
"""Of a longer prompt only so many blocks are looked at: at most about half a millisecond."""

MAX_BLOCKS = 65_536
"""That are remembered of an engine: about six MiB."""

_pack = struct.Struct("<q").pack


def block_keys(message: TokenizeMsg) -> list[int]:
    """Returns a hash of each whole block of the prompt and all before it, from the first on.

    They mean nothing in another process. Prompts of different form or `cache_salt` have none in common.
    """
    if message.chat is not None:
        form, data = msgspec.structs.replace(message.chat, messages=b""), message.chat.messages
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


class PrefixIndex:
    """Of each engine the blocks that it was sent, without those that were used longest ago."""

    def __init__(self, max_blocks: int = MAX_BLOCKS):
        self._max_blocks = max_blocks
        self._blocks: dict[int, dict[int, None]] = {}
        """By engine; the one that was used last is the last."""

    def count_match(self, engine: int, keys: Sequence[int]) -> int:
        """Returns how many of the first blocks the engine has been sent."""
        blocks = self._blocks.get(engine, {})
        for num_known, key in enumerate(keys):
            if key not in blocks:
                return num_known
        return len(keys)

    def add(self, engine: int, keys: Sequence[int]) -> None:
        """Notes that the engine is sent these blocks. The first goes last, so that it outlives what is behind it."""
        blocks = self._blocks.setdefault(engine, {})
        for key in reversed(keys):
            blocks.pop(key, None)
            blocks[key] = None
        while len(blocks) > self._max_blocks:
            del blocks[next(iter(blocks))]

    def forget(self, engine: int) -> None:
        """The engine's cache is empty."""
        self._blocks.pop(engine, None)
