"""LoRA adapters in requests."""

import msgspec


class Adapter(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter under the name that clients use, in the directory `path` of the server's machine.

    Its identity is `digest`, a hexadecimal blake2b of its files: other files in the same directory are another adapter.
    """

    name: str
    path: str
    digest: str
