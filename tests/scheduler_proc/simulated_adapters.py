"""LoRA adapters without tensors: a number that changes what each slot of the KV cache holds, read in some turns."""

import random
import zlib
from collections.abc import Collection

from messages.errors import ErrorInfo
from messages.ring.adapters import Adapter
from messages.ring.requests import SamplingParams
from scheduler_proc.deciding.adapter_slots import AdapterSlots

UNREADABLE = ErrorInfo(400, "the adapter cannot be read")


def make_adapter(number: int, path: str = "") -> Adapter:
    return Adapter(f"adapter-{number}", path or f"/adapters/{number}", f"{number:032x}")


def key_of(adapter: Adapter | None) -> int:
    """Returns what is added to the ids of tokens that are computed with it; 0 without one."""
    return 0 if adapter is None else 1_000 + zlib.crc32(adapter.digest.encode()) % 1_000_000


def adapted(params: SamplingParams, token_id: int) -> int:
    return token_id + key_of(params.adapter)


class SimulatedAdapters:
    """Reads each adapter in one to four turns, with `chance`, else in the next one. `bad` paths cannot be read."""

    def __init__(self, num_slots: int, chance: random.Random | None = None, bad: Collection[str] = ()):
        self._chance = chance
        self._bad = bad
        self._reading: list[list[Adapter]] = []
        self.num_read = 0
        self.slots = AdapterSlots(num_slots, self)

    def start(self, adapter: Adapter) -> None:
        assert adapter not in [entry for turn in self._reading for entry in turn], "an adapter is read twice at once"
        turn = 0 if self._chance is None else self._chance.randrange(4)
        self._reading += [[] for _ in range(turn + 1 - len(self._reading))]
        self._reading[turn].append(adapter)

    def pop_read(self) -> list[tuple[Adapter, int | ErrorInfo]]:
        done = self._reading.pop(0) if self._reading else []
        self.num_read += len(done)
        return [(adapter, UNREADABLE if adapter.path in self._bad else key_of(adapter)) for adapter in done]
