"""Requests of every kind through a runner, with and without draft tokens: the outputs must be the same.

    python -m tests.scheduler_proc.mixed_requests [--requests 500] [--model DIR ...]

Without --model it checks small random checkpoints of three families. It asserts that tokens, reasons and logprobs are
the same in float32, and prints how many draft tokens there were.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from messages.columns import pack_float32, pack_int32
from messages.config.server import Config
from messages.ring.requests import AbortMsg, StopSeen, UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding.drafting.draft_lengths import DraftLengths
from scheduler_proc.deciding.drafting.draft_model import DraftLimits, DraftModel
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.drafting.drafts import Drafter, NgramDrafter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.rows.batch_columns import BatchBuilder
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, Stepper
from supervisor.flags import parse_flags
from supervisor.run import build_config
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.simulated_drafter import AllDrafts

FAMILIES = ("gpt2", "llama-gqa-tied", "qwen3-gqa-tied")
CONTEXT = 96
PAGE_SIZE, NUM_PAGES = 4, 44
MAX_ROWS, STEP_TOKENS = 8, 48
NUM_DRAFTS = 6
LOGPROB_TOLERANCE = 1e-3


MakeDrafter = Callable[[BlockAllocator], Drafter | DraftModel | None]


@dataclass(frozen=True)
class Seen:
    """What the client has of one request when it ends."""

    tokens: list[int]
    reason: str
    logprobs: list[float]


@dataclass(frozen=True)
class Outcome:
    seen: dict[int, Seen]
    gauges: dict[str, float]


def mixed_messages(num_requests: int, vocab_size: int, seed: int = 1) -> list[UserMsg]:
    """Returns requests whose prompts often repeat themselves, half of them greedy, with parameters of every kind."""
    chance = random.Random(seed)
    shared = [chance.randrange(vocab_size) for _ in range(24)]
    messages: list[UserMsg] = []
    for uid in range(num_requests):
        pattern = [chance.randrange(vocab_size) for _ in range(chance.randint(1, 9))]
        length = chance.choice((3, 9, 17, 40, 60))
        prompt = (chance.choice(([], shared)) + pattern * length)[:length]
        messages.append(
            user_msg(
                uid,
                prompt,
                max_tokens=chance.choice((1, 4, 20, 30, 40)),
                temperature=chance.choice((0.0, 0.0, 0.2, 0.8)),
                top_p=chance.choice((1.0, 0.9)),
                seed=uid,
                priority=chance.choice((0, 0, 3, 100)),
                **_params(chance, pattern, vocab_size),
            )
        )
    return messages


def _params(chance: random.Random, pattern: list[int], vocab_size: int) -> dict[str, Any]:
    params: dict[str, Any] = {"ignore_eos": chance.random() < 0.5}
    if chance.random() < 0.3:
        params["num_logprobs"] = chance.choice((0, 2))
    if chance.random() < 0.1:
        params["num_prompt_logprobs"] = 1
    if chance.random() < 0.2:
        params |= {"stop_token_ids": (chance.randrange(vocab_size), pattern[0]), "min_tokens": chance.choice((0, 6))}
    if chance.random() < 0.2:
        params["bad_word_ids"] = (pack_int32(pattern[:1]), pack_int32([chance.randrange(vocab_size), pattern[-1]]))
    if chance.random() < 0.2:
        params |= {"presence_penalty": chance.choice((-0.5, 0.5)), "repetition_penalty": chance.choice((1.0, 1.2))}
    if chance.random() < 0.2:
        params |= {"frequency_penalty": 0.2, "bias_ids": pack_int32(pattern[:1]), "bias_values": pack_float32([1.5])}
    if chance.random() < 0.1:
        params["allowed_token_ids"] = pack_int32(sorted({*pattern, *range(5)}))
    return params


class Client:
    """Sends the requests, some later than others; aborts some in the middle and asks others on as after a restart."""

    def __init__(
        self, runner: Runner, messages: list[UserMsg], vocab_size: int, make_drafter: MakeDrafter, adapts: bool = False
    ):
        self.inbox = Inbox()
        cache = BlockAllocator(NUM_PAGES, PAGE_SIZE)
        drafter = make_drafter(cache)
        self.scheduler = Scheduler(
            cache,
            Limits(CONTEXT, vocab_size, (0,)),
            Budget(MAX_ROWS, STEP_TOKENS, 2, 3),
            drafter and DraftPlanner(cache, drafter, DraftLengths() if adapts else AllDrafts()),
        )
        self._stepper = Stepper(self.scheduler, runner, StepTimes())
        self._messages = {message.uid: message for message in messages}
        self._unsent = list(reversed(messages))
        self._known: dict[int, list[int]] = {}

    def run(self) -> Outcome:
        while True:
            for _ in range(3):
                if self._unsent:
                    self.scheduler.receive(self._unsent.pop())
            self.inbox.take(self.scheduler.pop_replies())
            batch = self._stepper.plan()
            if batch is None and not self._stepper.has_step:
                break
            self._stepper.step(batch, 0.0)
            self.inbox.take(self.scheduler.pop_replies())
            self._disturb()
        self.scheduler.check()
        return Outcome({uid: self._seen(uid) for uid in self._messages}, self.scheduler.gauges())

    def _disturb(self) -> None:
        for (uid, attempt), tokens in list(self.inbox.tokens.items()):
            if attempt or (uid, attempt) in self.inbox.finished or len(tokens) < 4:
                continue
            if uid % 11 == 3:
                self.scheduler.receive(AbortMsg(uid, 0))
            elif uid % 11 == 5:
                self.scheduler.receive(StopSeen(uid, 0))
            elif uid % 11 == 7 and uid not in self._known:
                message = self._messages[uid]
                self._known[uid] = list(tokens)
                known = pack_int32(tokens)
                self.scheduler.receive(
                    UserMsg(uid, 1, message.input_ids, message.sampling_params, message.stamps, known, len(tokens))
                )

    def _seen(self, uid: int) -> Seen:
        attempt = int(uid in self._known)
        logprobs = [entry[1] for one in range(attempt + 1) for entry in self.inbox.logprobs[uid, one]]
        tokens = self._known.get(uid, []) + self.inbox.tokens[uid, attempt]
        return Seen(tokens, self.inbox.finished[uid, attempt].finish_reason, logprobs)


def compare(expected: Outcome, got: Outcome) -> None:
    """Asserts that what clients have is the same; of those that were cut off, as far as both got."""
    for uid, right in expected.seen.items():
        seen = got.seen[uid]
        length = min(len(right.tokens), len(seen.tokens)) if uid % 11 in (3, 5) else max(len(right.tokens), 1)
        assert seen.tokens[:length] == right.tokens[:length], f"request {uid} has other tokens"
        if uid % 11 in (3, 5):
            continue
        assert (seen.tokens, seen.reason) == (right.tokens, right.reason), f"request {uid} ends otherwise"
        pairs = zip(right.logprobs, seen.logprobs, strict=True)
        assert all(abs(a - b) < LOGPROB_TOLERANCE for a, b in pairs), f"request {uid} has other logprobs"


def check(config: Config, num_requests: int, seed: int = 1) -> dict[str, float]:
    """Asserts that outputs are the same without draft tokens, with all that are proposed, and with those that are worth
    their time; returns the gauges of the second run."""
    runner = load_runner(config, lambda text, fraction: None)
    vocab_size = config.facts.vocab_size
    messages = mixed_messages(num_requests, vocab_size, seed)
    make_drafter = partial(NgramDrafter, NUM_DRAFTS)
    if runner.draft_runner is not None:
        make_drafter = partial(_make_draft_model, vocab_size)
    plain = Client(runner, messages, vocab_size, lambda cache: None).run()
    eager = Client(runner, messages, vocab_size, make_drafter).run()
    compare(plain, eager)
    compare(plain, Client(runner, messages, vocab_size, make_drafter, adapts=True).run())
    return eager.gauges


def _make_draft_model(vocab_size: int, cache: BlockAllocator) -> DraftModel:
    builder = BatchBuilder(NUM_PAGES, PAGE_SIZE, CONTEXT)
    limits = DraftLimits(NUM_DRAFTS, CONTEXT, vocab_size, vocab_size)
    return DraftModel(builder, cache, limits)


def family_config(directory: Path, variant: str, draft_dir: Path | None = None) -> Config:
    build_checkpoint(directory, variant)
    draft: dict[str, Any] = {} if draft_dir is None else {"draft_model": draft_dir}
    return make_config(directory, dtype="float32", block_size=PAGE_SIZE, num_pages=NUM_PAGES, **draft)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--model", nargs="+", default=[], metavar="DIR")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        configs = {name: family_config(Path(scratch) / name, name) for name in (() if options.model else FAMILIES)}
        for model in options.model:
            flags = ["--model", model, "--dtype", "float32", "--device", "cpu", "--num-pages", str(NUM_PAGES)]
            flags += ["--max-model-len", str(CONTEXT), "--cpu-threads", "1"]
            sections: dict[str, Any] = dict(parse_flags([*flags, "--block-size", str(PAGE_SIZE)]))
            configs[model] = build_config(sections)
        for name, config in configs.items():
            gauges = check(config, options.requests)
            names = ("draft_tokens", "accepted_tokens", "preemptions", "steps")
            print(f"{name}: the same for {options.requests} requests;", {key: gauges[key] for key in names}, flush=True)


if __name__ == "__main__":
    main()
