"""The messages with which a machine that has joined gets files of the model that it lacks (decision 0159)."""

from typing import Literal

import msgspec

FILE_PART_BYTES = 1 << 20
"""A part of a file begins at a multiple of this. On 1 Mb/s a part takes 8 s: each answer may take 30."""

MAX_OPEN_QUESTIONS = 16
"""Parts that are asked for before the first one has arrived: 16 MiB suffice for 1 Gb/s and 128 ms there and back."""

Directory = Literal["model", "tokenizer", "draft"]
"""The directories of a run's model: with weights and config.json, of `--tokenizer`, and of `--draft-model`."""


class RemoteFile(msgspec.Struct, frozen=True, array_like=True):
    """A file of the head's model. `digest` is of its size and both ends; the bytes in `spans` are needed."""

    name: str
    num_bytes: int
    digest: str
    spans: tuple[tuple[int, int], ...]

    def part_begins(self) -> list[int]:
        """Returns where the needed parts begin."""
        numbers = {
            number
            for begin, end in self.spans
            for number in range(max(0, begin) // FILE_PART_BYTES, -(-min(end, self.num_bytes) // FILE_PART_BYTES))
        }
        return [number * FILE_PART_BYTES for number in sorted(numbers)]

    def part_bytes(self, begin: int) -> int:
        """Returns the size of the part that begins there."""
        return min(FILE_PART_BYTES, self.num_bytes - begin)


class ListFiles(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: which files of the directory are needed there?"""

    directory: Directory


class SendPart(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """joiner → proxy: send the part of a listed file that begins at `begin`, unless its SHA-256 is `digest`."""

    directory: Directory
    name: str
    begin: int
    digest: bytes


class FileList(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: the files in the directory, small ones first."""

    files: tuple[RemoteFile, ...]


class ModelPart(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """proxy → joiner: the next part, in the order of the questions; `None` if it has the digest in the question."""

    name: str
    begin: int
    data: bytes | None
