"""Both halves together give transformers' logprobs and penalized tokens: chunked, cached, preempted, with others."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from messages.columns import pack_float32, pack_int32
from messages.ring.requests import UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.simulated_runner import Logprob

TOLERANCE = 1e-4
PAGE_SIZE = 4
PLENTY, SCARCE = 400, 34
MAX_TOKENS = 20


class Served:
    """A checkpoint as transformers and as a scheduler with a small cache see it."""

    def __init__(self, path: Path, variant: str):
        self.reference = build_checkpoint(path, variant)
        config = make_config(path, block_size=PAGE_SIZE, num_pages=PLENTY)
        self.runner: Runner = load_runner(config, lambda text, fraction: None)

    def logprobs(self, ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return self.reference(torch.tensor([ids])).logits[0].log_softmax(-1)


@pytest.fixture(scope="module", params=["gpt2", "llama-gqa-tied", "gpt_neox"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp(request.param), request.param)


def some_prompts() -> list[list[int]]:
    """Every second begins like the one before, so that the cache holds some of it."""
    chooser = random.Random(5)
    prompts: list[list[int]] = []
    for index, length in enumerate([1, 2, 17, 60, 33, 34, 70, 71, 5, 40, 12, 28]):
        fresh = [chooser.randrange(VOCAB_SIZE) for _ in range(length)]
        shared = prompts[-1][: length - 1] if index % 2 else []
        prompts.append(shared + fresh[len(shared) :])
    return prompts


def some_requests() -> list[UserMsg]:
    ways: list[dict[str, object]] = [
        {"num_logprobs": 3, "num_prompt_logprobs": 2},
        {"num_logprobs": 0, "repetition_penalty": 1.3},
        {"num_prompt_logprobs": 0, "temperature": 1.2, "seed": 4},
        {"num_logprobs": 20, "num_prompt_logprobs": 20, "max_tokens": 0, "echo": True},
        {"num_logprobs": 2, "bias_ids": pack_int32([9, 10]), "bias_values": pack_float32([30.0, -100.0])},
        {},
        {"num_logprobs": 1, "frequency_penalty": 1.5, "presence_penalty": -0.5, "min_tokens": 5},
    ]
    requests = enumerate(some_prompts())
    return [user_msg(uid, prompt, **{"max_tokens": MAX_TOKENS, **ways[uid % len(ways)]}) for uid, prompt in requests]


def run(served: Served, requests: list[UserMsg], num_pages: int, num_step_tokens: int) -> tuple[Inbox, Scheduler]:
    limits, budget = Limits(CONTEXT, VOCAB_SIZE), Budget(max_num_seqs=12, max_num_batched_tokens=num_step_tokens)
    scheduler, inbox = Scheduler(BlockAllocator(num_pages, PAGE_SIZE), limits, budget), Inbox()
    for request in requests:
        scheduler.receive(request)
    while (batch := scheduler.schedule()) is not None:
        scheduler.commit(*run_step(served.runner.run, batch))
        inbox.take(scheduler.pop_replies())
    scheduler.check()
    return inbox, scheduler


def assert_logprobs(logprobs: list[Logprob], ids: list[int], theirs_LV: Tensor, num_top: int) -> None:
    assert [token_id for token_id, _, _ in logprobs] == ids
    for (token_id, logprob, _), theirs_V in zip(logprobs, theirs_LV, strict=True):
        assert abs(logprob - float(theirs_V[token_id])) < TOLERANCE
    if logprobs:
        ours_LN = torch.tensor([[value for _, value in top] for _, _, top in logprobs], dtype=torch.float32)
        top_ids_LN = torch.tensor([[top_id for top_id, _ in top] for _, _, top in logprobs], dtype=torch.int64)
        torch.testing.assert_close(ours_LN, theirs_LV.topk(num_top).values, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(ours_LN, theirs_LV.gather(1, top_ids_LN), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("num_pages", "num_step_tokens"),
    [(PLENTY, 4096), (PLENTY, 16), (SCARCE, 16)],
    ids=["together", "chunked", "scarce"],
)
def test_logprobs_of_prompts_and_outputs(served: Served, num_pages: int, num_step_tokens: int) -> None:
    requests = some_requests()
    inbox, scheduler = run(served, requests, num_pages, num_step_tokens)
    for request, prompt in zip(requests, some_prompts(), strict=True):
        key, params = (request.uid, 0), request.sampling_params
        output = inbox.tokens[key]
        assert len(output) == params.max_tokens
        theirs_LV = served.logprobs(prompt + output)
        if params.num_prompt_logprobs is not None:
            before_LV = theirs_LV[: len(prompt) - 1]
            assert_logprobs(inbox.prompt_logprobs[key], prompt[1:], before_LV, params.num_prompt_logprobs)
        if params.num_logprobs is not None:
            assert_logprobs(inbox.logprobs[key], output, theirs_LV[len(prompt) - 1 : -1], params.num_logprobs)
    gauges = scheduler.gauges()
    assert (gauges["preemptions"] > 0) == (num_pages == SCARCE)


def test_penalized_tokens_are_the_same_in_every_schedule(served: Served) -> None:
    """Repetition against transformers; the others, which it does not have, against a run of each request alone."""
    requests = some_requests()
    inboxes = [run(served, requests, *sizes)[0] for sizes in ((PLENTY, 4096), (SCARCE, 16))]
    assert inboxes[0].tokens == inboxes[1].tokens
    for request, prompt in zip(requests, some_prompts(), strict=True):
        output = inboxes[0].tokens[request.uid, 0]
        alone, _ = run(served, [request], PLENTY, 4096)
        assert alone.tokens[request.uid, 0] == output
        if request.sampling_params.repetition_penalty != 1.0:
            ids = torch.tensor([prompt])
            ends = {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
            generated = served.reference.generate(
                ids, max_new_tokens=MAX_TOKENS, do_sample=False, repetition_penalty=1.3, **ends
            )
            assert generated[0, len(prompt) :].tolist() == output


def test_a_row_that_runs_out_of_tokens_fails_alone(served: Served) -> None:
    """One token is allowed, but not twice in a row."""
    only_one = {"allowed_token_ids": pack_int32([3]), "bad_word_ids": (pack_int32([3, 3]),), "num_logprobs": 1}
    requests = [user_msg(0, [1, 2]), user_msg(1, [1, 2], **only_one), user_msg(2, [5, 6], num_logprobs=1)]
    inbox, _ = run(served, requests, PLENTY, 4096)
    assert inbox.finished[1, 0].finish_reason == "error"
    assert inbox.tokens[1, 0] == [3]
    assert len(inbox.logprobs[1, 0]) == 1
    for uid, prompt in ((0, [1, 2]), (2, [5, 6])):
        assert inbox.finished[uid, 0].finish_reason == "length"
        alone, _ = run(served, [user_msg(0, prompt)], PLENTY, 4096)
        assert inbox.tokens[uid, 0] == alone.tokens[0, 0]
    theirs_LV = served.logprobs([5, 6, *inbox.tokens[2, 0]])
    assert_logprobs(inbox.logprobs[2, 0], inbox.tokens[2, 0], theirs_LV[1:-1], 1)
