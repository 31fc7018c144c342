"""The choice of an engine for a request: the one whose prefix cache saves most, as long as it is not far behind."""

from collections.abc import Sequence
from typing import NamedTuple

from frontend.links.processes import ProcessView
from frontend.requests.admission import estimate_tokens
from frontend.routing.prefixes import BLOCK_BYTES, PrefixIndex, block_keys
from messages.columns import num_int32
from messages.control.processes import worker_number
from messages.engines import SCHEDULER
from messages.ring.requests import TokenizeMsg

MAX_OUTPUT_TOKENS = 256
"""What a request weighs for its output at most; how long that becomes nobody knows."""

CACHED_WEIGHT = 4.0
"""A cached token counts as so many tokens of another engine's lead: beside the work that it saves now, it keeps what
the other one has cached. `benchmarks/results/router.json` has the simulations."""

MAX_LEAD_TOKENS = 65_536
"""An engine that has so many tokens more to do than the least busy one gets nothing, whatever it has cached."""

SMALL_LEAD_TOKENS = 2048
"""While little is to be done, a lead up to this is no reason to leave what is cached: it comes and goes by chance."""

MAX_SMALL_LEAD = 2.0
"""If it is not more than so many times the load of the least busy engine: one that idles gets work."""

LITTLE_TOKENS = 8192
"""The most that the least busy engine may have to do for that."""

OTHERS_TOKENS = 512
"""What a request of another frontend is taken to weigh."""


class Offer(NamedTuple):
    """What is known of an engine for one request: tokens that it has to do, and of the prompt those it has cached."""

    engine: int
    load_tokens: float
    cached_tokens: float
    last_turn: int = 0
    """When it was chosen last, in choices."""


def choose_engine(offers: Sequence[Offer]) -> Offer:
    """Returns the best; of those that are alike the least busy one, and then the one that was chosen longest ago."""
    least = min(offer.load_tokens for offer in offers)
    near = [offer for offer in offers if offer.load_tokens <= least + MAX_LEAD_TOKENS]
    small = min(SMALL_LEAD_TOKENS, MAX_SMALL_LEAD * least) if least <= LITTLE_TOKENS else 0.0

    def cost(offer: Offer) -> tuple[float, float, int]:
        lead = offer.load_tokens - least
        return (lead if lead > small else 0.0) - CACHED_WEIGHT * offer.cached_tokens, lead, offer.last_turn

    return min(near, key=cost)


class Router:
    """Places requests, and remembers what each engine has been given and not ended.

    `follow` must be called with each process table. While there is one engine, nothing is looked at or remembered.
    """

    def __init__(self, processes: ProcessView, own_block: int):
        self._processes = processes
        self._own_block = own_block
        self._prefixes = PrefixIndex()
        self._incarnations: dict[str, int] = {}
        self._engines: Sequence[int] = (1,)
        self._given: dict[int, tuple[int, int]] = {}
        """By uid of the open requests: their engine, and the tokens that they weigh."""
        self._load: dict[int, int] = {}
        self._others_load: dict[int, float] = {}
        """By engine, of other frontends' requests, as of the latest beat."""
        self._last_turns: dict[int, int] = {}
        self._num_turns = 0

    def follow(self) -> None:
        """Takes the engines that serve now; what has started anew has an empty cache, unless it says otherwise."""
        processes = self._processes
        all_gauges = processes.engine_gauges()
        for name, incarnation in processes.serving_of(SCHEDULER).items():
            gauges, known = all_gauges[worker_number(name)], self._incarnations.get(name, incarnation)
            if known != incarnation and not gauges:
                continue  # its first beat will tell
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
        """Returns the engine that is to have the request; with `keep` its present one if that takes requests."""
        if len(self._engines) == 1:
            return self._engines[0]
        if keep and message.engine in self._engines:
            return message.engine
        keys = block_keys(message)
        num_tokens = estimate_tokens(message.prompt_text, message.prompt_ids, message.chat)
        tokens_per_key = num_tokens * BLOCK_BYTES / max(1, num_bytes(message))
        offers = [
            Offer(
                engine,
                self._load.get(engine, 0) + self._others_load.get(engine, 0.0),
                self._prefixes.count_match(engine, keys) * tokens_per_key,
                self._last_turns.get(engine, 0),
            )
            for engine in self._engines
        ]
        best = choose_engine(offers)
        params, num_done = message.sampling_params, num_int32(message.output_ids)
        num_output = min(params.max_tokens - num_done, MAX_OUTPUT_TOKENS)
        self._give(message.uid, best.engine, round(max(0.0, num_tokens - best.cached_tokens)) + num_done + num_output)
        self._prefixes.add(best.engine, keys)
        return best.engine

    def release(self, uid: int) -> None:
        """The request has ended."""
        given = self._given.pop(uid, None)
        if given is not None:
            self._load[given[0]] -= given[1]

    def __len__(self) -> int:
        return len(self._given)

    def _give(self, uid: int, engine: int, num_tokens: int) -> None:
        self.release(uid)
        self._given[uid] = engine, num_tokens
        self._load[engine] = self._load.get(engine, 0) + num_tokens
        self._num_turns += 1
        self._last_turns[engine] = self._num_turns

    def _count_others(self, engine: int) -> float:
        num_own = sum(given == engine for given, _ in self._given.values())
        return OTHERS_TOKENS * max(0.0, self._processes.engine_gauges()[engine].get("requests", 0.0) - num_own)


def num_bytes(message: TokenizeMsg) -> int:
    """Returns how long the prompt is as `block_keys` sees it, about."""
    if message.chat is not None:
        return len(message.chat.messages)
    return len(message.prompt_ids) if message.prompt_text is None else len(message.prompt_text)
