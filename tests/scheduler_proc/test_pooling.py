"""Both halves together give transformers' pooled hidden states: chunked, cached, preempted, beside other requests."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from messages.columns import unpack_float32
from messages.replies import PooledVector
from messages.requests import UserMsg
from scheduler_proc.computing.loading.load_runner import load_runner
from scheduler_proc.deciding.block_allocator import BlockAllocator
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.policy import Budget
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg

PAGE_SIZE, PLENTY, SCARCE = 4, 400, 32
WAYS = ({"pooling": "mean"}, {"pooling": "last"}, {"max_tokens": 25, "num_prompt_logprobs": 1}, {"max_tokens": 25})


def some_requests() -> list[UserMsg]:
    chooser, prompts = random.Random(5), [[3]]
    for index, length in enumerate([2, 17, 60, 62, 34, 70, 71, 5, 40, 45, 28]):
        shared = prompts[-1][: length - 1] if index % 2 else []
        prompts.append(shared + [chooser.randrange(VOCAB_SIZE) for _ in range(length - len(shared))])
    return [
        user_msg(uid, prompt, **{"max_tokens": 0, "ignore_eos": True} | WAYS[uid % 4])
        for uid, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("variant", ["gpt2", "qwen3-gqa-tied"])
def test_vectors_are_those_of_transformers(variant: str, tmp_path: Path) -> None:
    reference = build_checkpoint(tmp_path, variant).base_model
    runner = load_runner(make_config(tmp_path, block_size=PAGE_SIZE, num_pages=PLENTY), lambda text, fraction: None)
    for num_pages, num_step_tokens in ((PLENTY, 4096), (PLENTY, 16), (SCARCE, 16)):
        budget = Budget(max_num_seqs=12, max_num_batched_tokens=num_step_tokens)
        scheduler = Scheduler(BlockAllocator(num_pages, PAGE_SIZE), Limits(CONTEXT, VOCAB_SIZE), budget)
        inbox, vectors = Inbox(), dict[int, Tensor]()
        for request in (requests := some_requests()):
            scheduler.receive(request)
        while (batch := scheduler.schedule()) is not None:
            scheduler.commit(*run_step(runner.run, batch))
            replies = scheduler.pop_replies()
            inbox.take(replies)
            vectors |= {
                it.uid: torch.tensor(unpack_float32(it.vector)) for it in replies if isinstance(it, PooledVector)
            }
        scheduler.check()
        assert (scheduler.gauges()["preemptions"] > 0) == (num_pages == SCARCE)
        assert all(row.error is None for row in inbox.finished.values())
        assert len(inbox.finished) == len(requests)
        assert set(vectors) == {request.uid for request in requests if request.sampling_params.pooling}
        for uid, vector in vectors.items():
            with torch.inference_mode():
                hidden_LE = reference(torch.tensor([list(memoryview(requests[uid].input_ids).cast("i"))]))[0][0]
            pooled_E = hidden_LE.mean(0) if requests[uid].sampling_params.pooling == "mean" else hidden_LE[-1]
            torch.testing.assert_close(vector, pooled_E / pooled_E.norm(), rtol=0, atol=1e-5)
