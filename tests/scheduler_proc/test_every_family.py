"""Every architecture in float32: greedy tokens and logprobs are those of transformers, however its steps are cut.

Alone, from the cache, together, in chunks of 7 tokens, preempted, with draft tokens and continued after a restart.
An architecture is added by its variants in `tests/checkpoints.py`.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from messages.ring.requests import UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.families.registry import ENCODERS, FAMILIES
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.drafting.drafts import Draft, NgramDrafter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.state_plans import REWRITTEN_TOKENS
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.checkpoints import (
    CONTEXT,
    EVERY_ARCHITECTURE,
    TRANSFORMERS_VARIANTS,
    VOCAB_SIZE,
    build_checkpoint,
    make_config,
)
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.simulated_drafter import plan_all_drafts
from tests.scheduler_proc.simulated_runner import Logprob

PAGE_SIZE = 4
PLENTY, SCARCE = 400, 26
SCARCE_STATES = 4
RUNNER_PAGES = 3000
"""A cache of this size has state slots for all checkpoints."""
NUM_LOGPROBS = 2
CLEAR_MARGIN, TOLERANCE = 1e-3, 2e-4
"""A greedy token may be the second best by less than the margin; logprobs differ by less than the tolerance."""

FIRST = [variants[0] for variants in EVERY_ARCHITECTURE.values()]
OTHERS = [
    *dict.fromkeys(variants[-1] for variants in EVERY_ARCHITECTURE.values() if len(variants) > 1),
    *(variant for variants in TRANSFORMERS_VARIANTS.values() for variant in variants),
]
"""The last variant of each architecture, and those that transformers' own code computes."""


class Served:
    """A checkpoint as transformers and as the scheduler see it, and the output of each prompt by itself."""

    def __init__(self, path: Path, variant: str):
        self.reference = build_checkpoint(path, variant)
        config = make_config(path, block_size=PAGE_SIZE, num_pages=RUNNER_PAGES)
        self.runner: Runner = load_runner(config, lambda text, fraction: None)
        self._logprobs: dict[tuple[int, ...], Tensor] = {}

    def logprobs(self, ids: Sequence[int]) -> Tensor:
        """Transformers' logprobs of what follows each of `ids`."""
        if (key := tuple(ids)) not in self._logprobs:
            with torch.inference_mode():
                self._logprobs[key] = self.reference(torch.tensor([key])).logits[0].log_softmax(-1)
        return self._logprobs[key]

    def check(self, prompt: list[int], output: list[int], logprobs: list[Logprob]) -> None:
        """Asserts that tokens and logprobs are transformers'. `logprobs` are those of the last tokens."""
        theirs_LV = self.logprobs(prompt + output)[len(prompt) - 1 : -1]
        best_L2 = theirs_LV.topk(2).values
        for index, token in enumerate(output):
            lead = float(best_L2[index, 0] - best_L2[index, 1])
            is_best = token == int(theirs_LV[index].argmax())
            assert is_best or lead < CLEAR_MARGIN, f"token {index} after {len(prompt)} is {token}, lead {lead:.4f}"
        for (token, ours, top), theirs_V in zip(logprobs, theirs_LV[len(output) - len(logprobs) :], strict=True):
            for token_id, logprob in [(token, ours), *top]:
                assert abs(logprob - float(theirs_V[token_id])) < TOLERANCE


class SpoiledDrafter:
    """An n-gram drafter; in every second draft, one token is wrong."""

    def __init__(self, cache: BlockAllocator):
        self._drafter, self._is_spoiled = NgramDrafter(4, cache), itertools.cycle((False, True))

    def propose(self, req: Req, max_tokens: int) -> Draft:
        draft = self._drafter.propose(req, max_tokens)
        if draft.token_ids and next(self._is_spoiled):
            draft.token_ids[len(draft.token_ids) // 2] ^= 1
        return draft


class Run:
    """A scheduler with an empty cache, before the model. It asks for logprobs with each request."""

    def __init__(self, served: Served, num_pages: int = PLENTY, *, budget: Budget, is_drafting: bool = False):
        windows = served.runner.windows and (served.runner.windows[0], min(served.runner.windows[1], num_pages))
        states = served.runner.states
        if states is not None and num_pages == SCARCE:
            states = states._replace(num_slots=SCARCE_STATES)
        cache = open_cache(num_pages, PAGE_SIZE, True, None, None, windows, states)
        self.served, self.inbox = served, Inbox()
        planner = plan_all_drafts(cache, SpoiledDrafter(cache)) if is_drafting else None
        self.scheduler = Scheduler(cache, Limits(CONTEXT, VOCAB_SIZE), budget, planner)

    def finish(self, requests: Sequence[UserMsg], max_steps: int = 10_000) -> None:
        """Runs the requests to their ends, or this number of steps."""
        for request in requests:
            self.scheduler.receive(request)
        while max_steps > 0 and (batch := self.scheduler.schedule()) is not None:
            self.scheduler.commit(self.served.runner.run(batch))
            self.inbox.take(self.scheduler.pop_replies())
            max_steps -= 1
        self.inbox.take(self.scheduler.pop_replies())
        self.scheduler.check()

    def check(self, num_requests: int) -> None:
        """Asserts that this number of requests has ended, with the right outputs."""
        assert len(self.inbox.finished) == num_requests
        for key in self.inbox.finished:
            prompt, output = PROMPTS[key[0] % len(PROMPTS)], self.inbox.tokens[key]
            assert len(output) == num_requested(prompt)
            self.served.check(prompt, output, self.inbox.logprobs[key])
            theirs_LV = self.served.logprobs(prompt + output)
            for index, (token, ours, _) in enumerate(self.inbox.prompt_logprobs.get(key, ())):
                assert abs(ours - float(theirs_LV[index, token])) < TOLERANCE


def make_prompts() -> list[list[int]]:
    """Prompts of 1 to nearly all tokens of the context; some begin as the one before, and some repeat themselves."""
    rng = random.Random(5)
    prompts: list[list[int]] = []
    for index, length in enumerate([1, 17, 33, 47, 48, 62, 8, 90]):
        fresh = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        if index % 2:
            fresh = (prompts[-1][: length - 1] + fresh)[:length]
        elif index == 4:
            fresh = (fresh[:6] * length)[:length]
        prompts.append(fresh)
    return prompts


PROMPTS = make_prompts()
AGAIN = len(PROMPTS)
"""The first uid of a second run of the prompts."""


def num_requested(prompt: list[int]) -> int:
    return min(11, CONTEXT - len(prompt))


def requests_from(first_uid: int = 0, **params: Any) -> list[UserMsg]:
    params = {"num_logprobs": NUM_LOGPROBS, **params}
    return [
        user_msg(uid, prompt, max_tokens=num_requested(prompt), **params)
        for uid, prompt in enumerate(PROMPTS, first_uid)
    ]


def alone_and_from_the_cache(served: Served) -> None:
    run = Run(served, budget=Budget(1, 4096))
    run.finish(requests_from()[1::6])
    run.finish(requests_from(AGAIN)[1::6])
    run.check(2 * len(PROMPTS[1::6]))
    assert sum(end.usage.cached_tokens for key, end in run.inbox.finished.items() if key[0] >= AGAIN) > 50


def after_a_hit_at_every_page_boundary(served: Served) -> None:
    """Each prompt has a page more than the one before; others then leave this text at each of its page boundaries."""
    if served.runner.states is None and served.runner.windows is None:
        return  # all pages are alike
    run, text = Run(served, budget=Budget(1, 4096)), PROMPTS[-1][:54]
    ends = range(PAGE_SIZE, len(text) - REWRITTEN_TOKENS, PAGE_SIZE)
    prompts = [text[: end + REWRITTEN_TOKENS] for end in ends] + [[*text[:end], text[end] ^ 1] for end in ends]
    run.finish([user_msg(uid, prompt, 1, num_logprobs=NUM_LOGPROBS) for uid, prompt in enumerate(prompts)])
    ended = run.inbox.finished
    cached = [ended[uid, 0].usage.cached_tokens for uid in range(len(prompts))]
    assert all(hit >= end for hit, end in zip(cached, [0, *ends[:-1]], strict=False))
    assert cached[len(ends) :] == list(ends)
    for uid, prompt in enumerate(prompts):
        served.check(prompt, run.inbox.tokens[uid, 0], run.inbox.logprobs[uid, 0])


def together(served: Served) -> None:
    run = Run(served, budget=Budget(32, 4096))
    run.finish(requests_from(num_prompt_logprobs=0))
    run.check(len(PROMPTS))


def in_chunks_of_7(served: Served) -> None:
    """The logits of some prompts are needed, of others only those of the last token."""
    run = Run(served, budget=Budget(4, 7))
    run.finish([*requests_from()[::4], *requests_from(num_prompt_logprobs=0)[1::4]])
    run.check(len(PROMPTS) // 2)


def preempted(served: Served) -> None:
    run = Run(served, SCARCE, budget=Budget(32, 40))
    run.finish(requests_from())
    run.check(len(PROMPTS))
    assert run.scheduler.gauges()["preemptions"] > 0


def with_drafts(served: Served) -> None:
    """The second time, draft tokens are those of the first outputs; half of the drafts have a wrong one."""
    run = Run(served, budget=Budget(32, 4096), is_drafting=True)
    run.finish(requests_from())
    run.finish(requests_from(AGAIN))
    run.check(2 * len(PROMPTS))
    gauges = run.scheduler.gauges()
    assert gauges["draft_tokens"] - 10 > gauges["accepted_tokens"] > 10


def continued(served: Served) -> None:
    """A scheduler ends in mid-stream; another continues what it has sent, with an empty cache and used memory."""
    before, after = (Run(served, budget=Budget(32, 48)) for _ in range(2))
    before.finish(requests_from(), max_steps=9)
    sent = [before.inbox.tokens.get((uid, 0), []) for uid in range(len(PROMPTS))]
    assert any(0 < len(ids) < num_requested(prompt) for ids, prompt in zip(sent, PROMPTS, strict=True))
    params: dict[str, Any] = {"num_logprobs": NUM_LOGPROBS, "attempt": 1}
    unfinished = [
        user_msg(uid, prompt, num_requested(prompt), output_ids=sent[uid], **params)
        for uid, prompt in enumerate(PROMPTS)
        if len(sent[uid]) < num_requested(prompt)
    ]
    after.finish(unfinished)
    for request in unfinished:
        output = sent[request.uid] + after.inbox.tokens[request.uid, 1]
        assert len(output) == num_requested(PROMPTS[request.uid])
        served.check(PROMPTS[request.uid], output, after.inbox.logprobs[request.uid, 1])


WAYS: list[Callable[[Served], None]] = [
    *(alone_and_from_the_cache, after_a_hit_at_every_page_boundary, together, in_chunks_of_7),
    *(preempted, with_drafts, continued),
]


@pytest.mark.parametrize("variant", [*FIRST, *OTHERS])
def test_tokens_and_logprobs_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    """First variants in every way, the others in three: any two ways come together in some variant."""
    served = Served(tmp_path, variant)
    ways = WAYS if variant in FIRST else [WAYS[(OTHERS.index(variant) + step) % len(WAYS)] for step in (0, 1, 3)]
    for way in ways:
        way(served)


def test_every_architecture_is_here() -> None:
    known = {name for family in FAMILIES if family not in ENCODERS for name in family.architectures}
    assert known == set(EVERY_ARCHITECTURE), "add variants to tests/checkpoints.py"
