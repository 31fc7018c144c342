"""The choice of an engine for a request: the one whose prefix cache saves most, unless it has far more load."""

from collections.abc import Sequence
from typing import NamedTuple

from frontend.links.processes import ProcessView
from frontend.requests.admission import estimate_tokens
from frontend.routing.prefixes import BLOCK_BYTES, PrefixIndex, block_keys
from messages.columns import num_int32
from messages.control.processes import worker_number
from messages.engine_names import SCHEDULER
from messages.ring.requests import TokenizeMsg

MAX_OUTPUT_TOKENS = 256
"""Maximum weight of a request's output, whose length is unknown."""

CACHED_WEIGHT = 4.0
"""Weight of a cached token in tokens of load: it saves work now, and preserves what the other engine has cached.
`benchmarks/results/router.json` has the simulations."""

MAX_LEAD_TOKENS = 65_536
"""An engine with this many more tokens of load than the least busy one gets no request, whatever it has cached."""

SMALL_LEAD_TOKENS = 2048
"""At low load, a difference up to this is random and does not outweigh the cache."""

MAX_SMALL_LEAD = 2.0
"""Limit of this difference as a multiple of the least busy engine's load: an idle engine gets work."""

LITTLE_TOKENS = 8192
"""Maximum load of the least busy engine that counts as low."""

OTHERS_TOKENS = 512
"""Estimated weight of a request of another frontend."""


class Offer(NamedTuple):
    """An engine as a candidate for one request: its load, and the cached tokens of the prompt."""

    engine: int
    load_tokens: float
    cached_tokens: float
    last_turn: int = 0
    """When it was last chosen, counted in choices."""


def choose_engine(offers: Sequence[Offer]) -> Offer:
    """Returns the best offer; among equals the least busy engine, then the one chosen longest ago."""
    least = min(offer.load_tokens for offer in offers)
    near = [offer for offer in offers if offer.load_tokens <= least + MAX_LEAD_TOKENS]
    small = min(SMALL_LEAD_TOKENS, MAX_SMALL_LEAD * least) if least <= LITTLE_TOKENS else 0.0

    def cost(offer: Offer) -> tuple[float, float, int]:
        lead = offer.load_tokens - least
        return (lead if lead > small else 0.0) - CACHED_WEIGHT * offer.cached_tokens, lead, offer.last_turn

    return min(near, key=cost)


class Router:
    """Places requests, and tracks the open requests of each engine.

    `follow` must be called with each process table. With a single engine, nothing is computed or remembered.
    """

    def __init__(self, processes: ProcessView, own_block: int):
        self._processes = processes
        self._own_block = own_block
        self._prefixes = PrefixIndex()
        self._incarnations: dict[str, int] = {}
        self._engines: Sequence[int] = (1,)
        self._sent_to: dict[int, tuple[int, int]] = {}
        """The engine and the weight in tokens of each open request, by uid."""
        self._load: dict[int, int] = {}
        self._others_load: dict[int, float] = {}
        """The load by other frontends' requests, by engine, as of the latest beat."""
        self._last_turns: dict[int, int] = {}
        self._num_turns = 0

    def follow(self) -> None:
        """Updates the serving engines. A restarted engine has an empty cache, unless it reports recovered pages."""
        processes = self._processes
        all_gauges = processes.engine_gauges()
        for name, incarnation in processes.serving_of(SCHEDULER).items():
            gauges, known = all_gauges[worker_number(name)], self._incarnations.get(name, incarnation)
            if known != incarnation and not gauges:
                continue  # known with its first beat
            if known != incarnation and not gauges.get("pages_recovered"):
                self._prefixes.forget(worker_number(name))
            self._incarnations[name] = incarnation
        for name in [name for name in self._incarnations if worker_number(name) not in all_gauges]:
            self._prefixes.forget(worker_number(name))
            del self._incarnations[name]
        self._engines = processes.open_engines() or (1,)
        if len(self._engines) > 1 and processes.other_fronts(self._own_block):
            self._others_load = {engine: self._count_others(engine) for engine in self._engines}

    def place(self, message: TokenizeMsg, *, keep: bool = False) -> int:
        """Returns the engine for the request; with `keep`, its current engine if that accepts requests."""
        if len(self._engines) == 1:
            return self._engines[0]
        if keep and message.engine in self._engines:
            return message.engine
        keys = block_keys(message)
        num_tokens = estimate_tokens(message.prompt_text, message.prompt_ids, message.chat, message.images)
        tokens_per_key = num_tokens * BLOCK_BYTES / max(1, num_bytes(message))
        offers = [
            Offer(
                engine,
                self._load.get(engine, 0) + self._others_load.get(engine, 0.0),
                self._prefixes.count_match(engine, keys) * tokens_per_key,
                self._last_turns.get(engine, 0),
            )
            for engine in self._engines_for(message)
        ]
        best = choose_engine(offers)
        params, num_done = message.sampling_params, num_int32(message.output_ids)
        num_output = min(params.max_tokens - num_done, MAX_OUTPUT_TOKENS)
        self._give(message.uid, best.engine, round(max(0.0, num_tokens - best.cached_tokens)) + num_done + num_output)
        self._prefixes.add(best.engine, keys)
        return best.engine

    def _engines_for(self, message: TokenizeMsg) -> Sequence[int]:
        """Returns the engines that can run it: images need one with an encoder, on this machine, if there is any."""
        gauges = self._processes.engine_gauges() if message.images else {}
        return [engine for engine in self._engines if "images_cached" in gauges.get(engine, {})] or self._engines

    def release(self, uid: int) -> None:
        """Removes a request that has ended."""
        provided = self._sent_to.pop(uid, None)
        if provided is not None:
            self._load[provided[0]] -= provided[1]

    def __len__(self) -> int:
        return len(self._sent_to)

    def _give(self, uid: int, engine: int, num_tokens: int) -> None:
        self.release(uid)
        self._sent_to[uid] = engine, num_tokens
        self._load[engine] = self._load.get(engine, 0) + num_tokens
        self._num_turns += 1
        self._last_turns[engine] = self._num_turns

    def _count_others(self, engine: int) -> float:
        num_own = sum(provided == engine for provided, _ in self._sent_to.values())
        return OTHERS_TOKENS * max(0.0, self._processes.engine_gauges()[engine].get("requests", 0.0) - num_own)


def num_bytes(message: TokenizeMsg) -> int:
    """Returns the approximate length of the prompt as `block_keys` hashes it."""
    if message.chat is not None:
        return len(message.chat.messages)
    return len(message.prompt_ids) if message.prompt_text is None else len(message.prompt_text)
