"""LoRA adapters: their identity in requests, and the question that makes a scheduler read one."""

import msgspec

from messages.errors import ErrorInfo


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter under the name that clients use, in the directory `path` of the server's machine.

    Its identity is `digest`, a hexadecimal blake2b of its files: other files in the same directory are another adapter.
    """

    name: str
    path: str
    digest: str


class LoadAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: read and check the adapter in `path`. Answered with `AdapterLoaded`."""

    uid: int
    path: str
    engine: int = 1


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """scheduler → detokenizer → frontend: the answer to `LoadAdapter`. With an `error`, there is no adapter."""

    uid: int
    digest: str = ""
    rank: int = 0
    num_bytes: int = 0
    error: ErrorInfo | None = None
