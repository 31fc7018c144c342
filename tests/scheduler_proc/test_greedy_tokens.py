"""Both halves together give transformers' greedy tokens: alone, 32 at once, chunked, cached, preempted, evicted."""

import random
from array import array
from pathlib import Path

import pytest
import torch

from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding.drafting.drafts import Draft, Drafter
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.state_plans import REWRITTEN_TOKENS
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Runner, Stepper
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.overlapped import OverlappedRunner
from tests.scheduler_proc.simulated_drafter import plan_all_drafts

SMALLEST_MARGIN = 1e-3
"""Where the reference's two best logits are closer than this, either token is right."""

ONE_OF_EACH = ("gpt2", "gemma3", "qwen3moe", "qwen3_5")
"""Positions that are learned and rotated, windows, experts, and recurrent states.

All variants are compared with fewer rows in tests/scheduler_proc/test_every_family.py.
"""

PAGE_SIZE = 4
PLENTY, SCARCE = 1_000, 40


class Model:
    """A checkpoint as transformers and as the scheduler see it."""

    def __init__(self, path: Path, variant: str):
        self.reference = build_checkpoint(path, variant)
        config = make_config(path, block_size=PAGE_SIZE, num_pages=PLENTY)
        self.runner: Runner = load_runner(config, lambda text, fraction: None)
        self._num_close: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._plain: tuple[list[list[int]], float] | None = None

    def plain(self) -> tuple[list[list[int]], float]:
        """Returns the outputs of `some_prompts` all at once, with room for all, and the number of steps of this run."""
        if self._plain is None:
            outputs, scheduler = run(self.runner, some_prompts(), PLENTY, 4096)
            self._plain = outputs, scheduler.gauges()["steps"]
        return self._plain

    def check(self, prompt: list[int], output: list[int]) -> int:
        """Asserts that each output token is the best one after what precedes it; returns how many were too close.

        What passed once is not calculated again: most tests give the same tokens.
        """
        key = tuple(prompt), tuple(output)
        if key not in self._num_close:
            self._num_close[key] = self._check(prompt, output)
        return self._num_close[key]

    def _check(self, prompt: list[int], output: list[int]) -> int:
        with torch.no_grad():
            logits_TV = self.reference(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        best = logits_TV.topk(2).values
        num_close = 0
        for index, token in enumerate(output):
            if token == int(logits_TV[index].argmax()):
                continue
            margin = float(best[index, 0] - best[index, 1])
            assert margin < SMALLEST_MARGIN, f"token {index} after {len(prompt)} is {token}, margin {margin:.4f}"
            num_close += 1
        return num_close


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp(request.param), request.param)


def some_prompts() -> list[list[int]]:
    """32 prompts of 1 to context - 1 tokens; every second begins like the one before."""
    rng = random.Random(5)
    lengths = [1, CONTEXT - 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, *(rng.randrange(1, CONTEXT) for _ in range(20))]
    prompts: list[list[int]] = []
    for index, length in enumerate(lengths):
        fresh = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
        shared = prompts[-1][: length - 1] if index % 2 else []
        prompts.append(shared + fresh[len(shared) :])
    return prompts


class Recalled:
    """Drafts the outputs of an earlier run, of the prompts in their order, with some tokens wrong."""

    def __init__(self, outputs: list[list[int]], max_drafts: int = 4):
        self.num_right = self.num_wrong = 0
        self._outputs = outputs
        self._max_drafts = max_drafts
        self._chance = random.Random(6)

    def propose(self, req: Req, max_tokens: int) -> Draft:
        start = req.pending.num_output_tokens
        drafts = self._outputs[req.uid][start : start + min(max_tokens, self._max_drafts)]
        if drafts and self._chance.random() < 0.3:
            drafts[self._chance.randrange(len(drafts))] ^= 1
            self.num_wrong += 1
        self.num_right += len(drafts)
        return Draft(array("i", drafts), [1.0] * len(drafts))


def make_cache(runner: Runner, num_pages: int, page_size: int = PAGE_SIZE) -> BlockAllocator:
    windows = runner.windows and (runner.windows[0], min(num_pages, runner.windows[1]))
    return open_cache(num_pages, page_size, True, None, None, windows, runner.states)


def run(
    runner: Runner,
    prompts: list[list[int]],
    num_pages: int,
    num_step_tokens: int,
    drafter: Drafter | None = None,
    page_size: int = PAGE_SIZE,
    **params: object,
) -> tuple[list[list[int]], Scheduler]:
    """Runs all prompts, to the end of the context unless `params` say otherwise, and returns their output ids."""
    cache = make_cache(runner, num_pages, page_size)
    scheduler = Scheduler(
        cache,
        Limits(CONTEXT, VOCAB_SIZE),
        Budget(max_num_seqs=32, max_num_batched_tokens=num_step_tokens),
        None if drafter is None else plan_all_drafts(cache, drafter),
    )
    stepper = Stepper(scheduler, runner, StepTimes())
    inbox = Inbox()
    for uid, prompt in enumerate(prompts):
        scheduler.receive(user_msg(uid, prompt, **{"max_tokens": CONTEXT, **params}))
    while (batch := scheduler.schedule()) is not None or stepper.has_step:
        stepper.step(batch, 0.0)
        inbox.take(scheduler.pop_replies())
    scheduler.check()
    return [inbox.tokens[uid, 0] for uid in range(len(prompts))], scheduler


@pytest.mark.parametrize("model", ONE_OF_EACH, indirect=True)
def test_32_at_once(model: Model):
    check_32_at_once(model, PLENTY, 4096)


@pytest.mark.parametrize("model", ONE_OF_EACH, indirect=True)
def test_32_at_once_chunked_and_preempted(model: Model):
    check_32_at_once(model, SCARCE, 64)


def check_32_at_once(model: Model, num_pages: int, num_step_tokens: int) -> None:
    prompts = some_prompts()
    outputs, scheduler = run(model.runner, prompts, num_pages, num_step_tokens)
    num_close = 0
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(prompt) + len(output) == CONTEXT
        num_close += model.check(prompt, output)
    gauges = scheduler.gauges()
    assert gauges["prefix_hit_tokens"] > 0
    assert (gauges["preemptions"] > 0) == (num_pages == SCARCE)
    if num_close:
        print(f"{num_close} tokens differ where the margin is below {SMALLEST_MARGIN}")


@pytest.mark.parametrize(
    ("model", "num_pages"),
    [("llama-gqa-tied", PLENTY), ("gpt2", SCARCE), ("qwen3_5", SCARCE)],
    ids=["llama-plenty", "gpt2-scarce", "qwen3_5-scarce"],
    indirect=["model"],
)
def test_planned_one_step_ahead(model: Model, num_pages: int):
    """The tokens are those that are right, by a runner whose next step is planned before the last has ended."""
    prompts, device = some_prompts(), OverlappedRunner(model.runner)
    device.states = model.runner.states
    outputs, scheduler = run(device, prompts, num_pages, 64)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(prompt) + len(output) == CONTEXT
        model.check(prompt, output)
    assert device.num_ahead > device.num_launched / 2
    assert (scheduler.gauges()["preemptions"] > 0) == (num_pages == SCARCE)


@pytest.mark.parametrize("model", ["gpt2", "qwen2-windows", "gemma3", "qwen3_5"], indirect=True)
def test_drafts_change_no_token_where_rows_are_preempted(model: Model):
    check_drafts(model, SCARCE)


@pytest.mark.parametrize("model", ["llama-mqa", "qwen3moe", "qwen3_5"], indirect=True)
def test_drafts_save_steps_and_change_no_token(model: Model):
    _, num_plain_steps = model.plain()
    assert check_drafts(model, PLENTY) < 0.6 * num_plain_steps


def check_drafts(model: Model, num_pages: int) -> float:
    """Rows that sample after several tokens, more of them in a step than there are rows, and drafts that are wrong.

    Returns the number of steps.
    """
    prompts = some_prompts()
    expected, _ = model.plain()
    drafter = Recalled(expected)
    outputs, scheduler = run(model.runner, prompts, num_pages, 4096, drafter)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(prompt) + len(output) == CONTEXT
        model.check(prompt, output)
    assert min(drafter.num_right, drafter.num_wrong) > 100
    return scheduler.gauges()["steps"]


@pytest.mark.parametrize("model", ["gpt2", "qwen3-gqa-tied"], indirect=True)
def test_drafts_change_no_sampled_token(model: Model):
    prompts = some_prompts()[:8]
    expected, _ = run(model.runner, prompts, PLENTY, 4096, temperature=0.8, seed=3)
    drafter = Recalled(expected)
    outputs, _ = run(model.runner, prompts, PLENTY, 4096, drafter, temperature=0.8, seed=3)
    assert outputs == expected
    assert min(drafter.num_right, drafter.num_wrong) > 30


@pytest.mark.parametrize("model", ONE_OF_EACH, indirect=True)
def test_alone_and_again_from_the_cache(model: Model):
    """Each prompt twice in one scheduler, one request after the other; the second time its pages are cached."""
    cache = make_cache(model.runner, PLENTY)
    scheduler = Scheduler(cache, Limits(CONTEXT, VOCAB_SIZE), Budget(1, 4096))
    for uid, prompt in enumerate(some_prompts()[:12]):
        outputs: list[list[int]] = []
        for attempt_uid in (2 * uid, 2 * uid + 1):
            scheduler.receive(user_msg(attempt_uid, prompt, max_tokens=24))
            inbox = Inbox()
            inbox.take(scheduler.pop_replies())
            while (batch := scheduler.schedule()) is not None:
                scheduler.commit(model.runner.launch(batch).result())
                inbox.take(scheduler.pop_replies())
            outputs.append(inbox.tokens[attempt_uid, 0])
            cached = inbox.finished[attempt_uid, 0].usage.cached_tokens
            num_left = REWRITTEN_TOKENS if model.runner.states else 1
            least, most = (len(prompt) - num_left) // PAGE_SIZE * PAGE_SIZE, (len(prompt) - 1) // PAGE_SIZE * PAGE_SIZE
            assert attempt_uid % 2 == 0 or least <= cached <= most
        assert outputs[0] == outputs[1]
        model.check(prompt, outputs[0])


def test_a_cache_of_codes_goes_through_all_that_moves_pages(tmp_path: Path):
    """Chunks, cached prefixes, preemption and wrong drafts, compared with a run with none of them.

    Sums in another order may round to another code, which may change the text if two tokens are almost equally likely.
    """
    build_checkpoint(tmp_path, "llama-gqa-tied")
    config = make_config(tmp_path, block_size=PAGE_SIZE, num_pages=PLENTY, kv_cache_dtype="int8")
    runner, prompts = load_runner(config, lambda text, fraction: None), some_prompts()
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    assert runner.forward_passes.cache.layers[0][0].keys.dtype == torch.int8
    expected, _ = run(runner, prompts, PLENTY, 4096)
    drafter = Recalled(expected)
    outputs, scheduler = run(runner, prompts, SCARCE, 64, drafter)
    gauges = scheduler.gauges()
    assert min(gauges["preemptions"], gauges["prefix_hit_tokens"], drafter.num_wrong) > 0
    num_same = sum(mine == theirs for mine, theirs in zip(outputs, expected, strict=True))
    assert num_same >= 28, f"{num_same} of {len(prompts)}"


@pytest.mark.parametrize("model", ["gpt2"], indirect=True)
def test_the_check_notices_a_wrong_token(model: Model):
    prompt = [1, 2, 3, 4]
    outputs, _ = run(model.runner, [prompt], PLENTY, 4096)
    wrong = outputs[0].copy()
    wrong[7] = (wrong[7] + 1) % VOCAB_SIZE
    with pytest.raises(AssertionError, match="margin"):
        model.check(prompt, wrong[:8])
