"""A `PageStore` over a simulated runner's slots, which is as late and as forgetful as a test wants."""

import random
from collections.abc import Sequence

Slots = list[tuple[int, int] | None]


class SimulatedStore:
    """Loads make progress when they are asked for, at most by `pages_at_once` together; where that is 0, they hang.

    With a `chance`, pages are dropped, lost and unreadable now and then. `states` has checkpoints.
    """

    def __init__(
        self,
        page_size: int,
        max_pages: int = 1000,
        chance: random.Random | None = None,
        states: "SimulatedStates | None" = None,
    ):
        self.slots: Slots = []
        self.states = states
        self.wake = lambda: None
        self.kept: dict[bytes, Slots] = {}
        self.pages_at_once = 1000
        self.page_s = 0.0
        self.page_put_s = 0.0
        self.num_put = 0
        self.loads: dict[int, tuple[Sequence[int], Sequence[bytes], int]] = {}
        self.num_loads = 0
        self.num_loaded = 0
        self._page_size = page_size
        self._max_pages = max_pages
        self._chance = chance

    def _fails(self) -> bool:
        return self._chance is not None and self._chance.random() < 0.1

    def find(self, digest: bytes) -> str | None:
        return "disk" if digest in self.kept else None

    def touch(self, digests: Sequence[bytes]) -> None:
        for digest in reversed(digests):
            self.kept[digest] = self.kept.pop(digest)

    def put(self, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        for page, digest in zip(pages, digests, strict=True):
            held = self._read(page)
            assert None not in held, "a page is put that was never written"
            assert self.kept.get(digest, held) == held, "two pages have one name"
            if not self._fails():
                self.kept[digest] = held
                self.num_put += 1
            while len(self.kept) > self._max_pages:
                del self.kept[next(iter(self.kept))]

    def estimate_s(self, digests: Sequence[bytes]) -> float:
        assert all(digest in self.kept for digest in digests)
        return self.page_s * len(digests)

    def load(self, uid: int, pages: Sequence[int], digests: Sequence[bytes]) -> None:
        assert uid not in self.loads, "a request has two loads"
        assert len(set(pages)) == len(digests)
        self.loads[uid] = pages, digests, 0
        self.num_loads += 1

    def cancel(self, uid: int) -> None:
        self.loads.pop(uid, None)

    def pop_loaded(self) -> list[tuple[int, int, bool]]:
        loaded: list[tuple[int, int, bool]] = []
        left = self.pages_at_once if self._chance is None else self._chance.randrange(4)
        for uid, (pages, digests, start) in list(self.loads.items()):
            done = start
            while left and done < len(pages) and digests[done] in self.kept and not self._fails():
                self._write(pages[done], self.kept[digests[done]])
                done, left = done + 1, left - 1
            has_ended = done == len(pages) or bool(left)
            if left and done < len(pages):
                self.kept.pop(digests[done], None)
            self.num_loaded += done - start
            self.loads[uid] = pages, digests, done
            if has_ended:
                del self.loads[uid]
            if has_ended or done > start:
                loaded.append((uid, done, has_ended))
        return loaded

    def sizes(self) -> dict[str, int]:
        return {"disk": len(self.kept)}

    def settle(self, timeout_s: float) -> bool:
        return timeout_s > 0

    def clear(self) -> None:
        self.kept.clear()
        if self.states is not None:
            self.states.clear()

    def gauges(self) -> dict[str, float]:
        return {"disk_pages": len(self.kept)}

    def close(self) -> None:
        pass

    def _read(self, page: int) -> Slots:
        return self.slots[page * self._page_size : (page + 1) * self._page_size]

    def _write(self, page: int, held: Slots) -> None:
        self.slots[page * self._page_size : (page + 1) * self._page_size] = held


class SimulatedStates(SimulatedStore):
    """The same of the states of a simulated runner, by slot."""

    def __init__(self, max_states: int = 1000, chance: random.Random | None = None):
        super().__init__(1, max_states, chance)
        self.by_slot: dict[int, tuple[int, int]] = {}

    def _read(self, page: int) -> Slots:
        return [self.by_slot.get(page)]

    def _write(self, page: int, held: Slots) -> None:
        (state,) = held
        assert state is not None
        self.by_slot[page] = state
