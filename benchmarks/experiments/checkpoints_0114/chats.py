"""Chats of a Mooncake trace: the prompt of a turn continues the previous prompt and the answer that the server gave."""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from extras.whatif.drive import SkippingClock
from extras.whatif.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, random_ids, read_trace
from messages.columns import INT64, pack_int32, runs_of
from messages.config.server import Config
from messages.ring.replies import DetokenizeMsg
from messages.ring.requests import SamplingParams, Stamps, UserMsg
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, Stepper


@dataclass(frozen=True, slots=True)
class Turn:
    """A prompt: the first `num_kept` tokens of the previous prompt and its answer, then `fresh_ids`."""

    at_s: float
    num_kept: int
    fresh_ids: list[int]
    num_output: int


def read_chats(
    file: Path, one_in: int, max_model_len: int, vocab_size: int, min_turns: int = 1, num_rewritten: int | None = None
) -> list[list[Turn]]:
    """Returns one in `one_in` of the chats that fit in the context and have `min_turns`, of full length.

    Requests with the same second block are turns of a chat: the first block is the system prompt of all. With
    `num_rewritten`, each prompt leaves out that number of tokens at the end of the prompt before, and the answer's
    reasoning, as with the templates of many reasoning models.
    """
    chats: dict[tuple[int, ...], list[TraceRequest]] = defaultdict(list)
    for request in read_trace(file, 10**9):
        chats[request.block_ids[:2]].append(request)
    fitting = [
        chat
        for chat in chats.values()
        if len(chat) >= min_turns and all(one.num_input + one.num_output <= max_model_len for one in chat)
    ]
    return [_make_turns(chat, vocab_size, num_rewritten) for chat in fitting[::one_in]]


def _make_turns(chat: Sequence[TraceRequest], vocab_size: int, num_rewritten: int | None) -> list[Turn]:
    turns: list[Turn] = []
    for before, request in itertools.pairwise([None, *chat]):
        assert request is not None
        num_kept = 0 if before is None else _count_kept(before, request)
        if before is not None and num_rewritten is not None:
            num_kept = min(num_kept, before.num_input - num_rewritten)
        rng = np.random.default_rng([1, request.block_ids[-1], len(turns)])
        fresh_ids = random_ids(rng, vocab_size, request.num_input - num_kept)
        if before is None:
            shared = random_ids(np.random.default_rng([2, request.block_ids[0]]), vocab_size, MOONCAKE_BLOCK_TOKENS)
            fresh_ids = (shared + fresh_ids[MOONCAKE_BLOCK_TOKENS:])[: request.num_input]
        turns.append(Turn(request.at_s, num_kept, fresh_ids, request.num_output))
    return turns


def _count_kept(before: TraceRequest, request: TraceRequest) -> int:
    """Returns how many tokens of the previous prompt and answer begin the prompt.

    The trace has blocks of 512 tokens. If all full blocks of the previous prompt are there, and the prompt is long
    enough, it is taken to continue the answer; otherwise it keeps the blocks that it shares, and no more.
    """
    pairs = zip(before.block_ids, request.block_ids, strict=False)
    num_shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    if request.num_input > before.num_input + before.num_output and num_shared >= len(before.block_ids) - 1:
        return before.num_input + before.num_output
    return min(num_shared * MOONCAKE_BLOCK_TOKENS, before.num_input, request.num_input - 1)


@dataclass
class Served:
    """What became of each turn, in the order in which the turns arrived."""

    num_prompt: list[int] = field(default_factory=list[int])
    num_cached: list[int] = field(default_factory=list[int])
    num_kept: list[int] = field(default_factory=list[int])
    """Tokens that an unlimited cache of full attention could have found, except the common system prompt."""
    is_first: list[bool] = field(default_factory=list[bool])
    ttft_s: list[float] = field(default_factory=list[float])
    seconds: float = 0.0
    gauges: dict[str, float] = field(default_factory=dict[str, float])
    max_gauges: dict[str, float] = field(default_factory=dict[str, float])
    """The maximum of each gauge between steps, and of what was watched."""
    max_watched: float = 0.0

    def extend(self, other: "Served") -> None:
        """Adds the turns of `other`."""
        for name in ("num_prompt", "num_cached", "num_kept", "is_first", "ttft_s"):
            getattr(self, name).extend(getattr(other, name))


class ChatLoop:
    """The scheduler's loop for chats. A turn begins when it did in the trace, and after the answer to the one before.

    `speed`: how much faster time passes than in the trace; infinite: each turn begins when the previous one ends.
    """

    def __init__(self, chats: Sequence[Sequence[Turn]], speed: float, clock: Callable[[], float]):
        self._chats, self._speed, self._clock = chats, speed, clock
        self._due = [(self._due_s(chat[0]), index, 0) for index, chat in enumerate(chats)]
        heapq.heapify(self._due)
        self._texts: list[list[int]] = [[] for _ in chats]
        """The last prompt of each chat and its answer so far."""
        self._running: dict[int, tuple[int, int]] = {}
        """By uid: the chat and the turn."""
        self._arrived_s: dict[int, float] = {}
        self.served = Served()

    @property
    def next_s(self) -> float:
        """The time of the next turn, infinite if every other turn waits for an answer."""
        return self._due[0][0] if self._due else math.inf

    def pop_requests(self) -> list[UserMsg]:
        """Returns the requests that are due."""
        requests: list[UserMsg] = []
        while self._due and self._due[0][0] <= self._clock():
            at_s, index, number = heapq.heappop(self._due)
            turn, uid = self._chats[index][number], len(self._arrived_s)
            text = self._texts[index] = self._texts[index][: turn.num_kept] + turn.fresh_ids
            self._running[uid], self._arrived_s[uid] = (index, number), at_s
            served = self.served
            served.num_prompt.append(len(text))
            served.num_kept.append(turn.num_kept)
            served.is_first.append(number == 0)
            served.num_cached.append(0)
            served.ttft_s.append(math.nan)
            params = SamplingParams(turn.num_output, temperature=0.0, ignore_eos=True)
            requests.append(UserMsg(uid, 0, pack_int32(text), params, Stamps()))
        return requests

    def take(self, reply: DetokenizeMsg) -> None:
        """Notes tokens and ends; the next turn of a chat becomes due."""
        now_s = self._clock()
        uids: list[int] = np.frombuffer(reply.uids, INT64).tolist()
        for uid, token_ids in zip(uids, runs_of(reply.token_ids, reply.num_tokens), strict=True):
            if math.isnan(self.served.ttft_s[uid]):
                self.served.ttft_s[uid] = now_s - self._arrived_s[uid]
            self._texts[self._running[uid][0]].extend(token_ids)
        for row in reply.finished:
            index, number = self._running[row.uid]
            self.served.num_cached[row.uid] = row.usage.cached_tokens
            if number + 1 < len(self._chats[index]):
                due_s = max(now_s, self._due_s(self._chats[index][number + 1]))
                heapq.heappush(self._due, (due_s, index, number + 1))

    def _due_s(self, turn: Turn) -> float:
        return turn.at_s / self._speed


def serve_chats(
    chats: Sequence[Sequence[Turn]],
    config: Config,
    runner: Runner,
    clock: SkippingClock,
    speed: float = math.inf,
    watch: Callable[[], float] = lambda: 0.0,
) -> Served:
    """Serves the chats by a new scheduler on `runner`."""
    scheduler, loop = make_scheduler(config, runner), ChatLoop(chats, speed, clock)
    stepper = Stepper(scheduler, runner, StepTimes(), clock)
    most: dict[str, float] = {}
    while True:
        for request in loop.pop_requests():
            scheduler.receive(request)
        batch = scheduler.schedule()
        if batch is not None or stepper.has_step:
            stepper.step(batch, clock())
        elif loop.next_s < math.inf:
            clock.wait_until(loop.next_s)
        else:
            break
        for reply in scheduler.pop_replies():
            if isinstance(reply, DetokenizeMsg):
                loop.take(reply)
        for name, value in scheduler.gauges().items():
            most[name] = max(most.get(name, value), value)
        loop.served.max_watched = max(loop.served.max_watched, watch())
    served = loop.served
    served.seconds, served.gauges, served.max_gauges = clock(), scheduler.gauges(), most
    return served
