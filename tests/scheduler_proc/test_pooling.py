"""Both halves together give transformers' pooled hidden states: chunked, cached, preempted, with other requests."""

import random
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import torch
import transformers
from torch import Tensor

from messages.columns import pack_int32, unpack_float32
from messages.config.server import ModelConfig
from messages.ring.replies import PooledReply
from messages.ring.requests import Pooling, UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from supervisor.model.facts import read_model_facts
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend, no_triton
from tests.tiny_bert import write_tiny_bert

PAGE_SIZE, PLENTY, SCARCE = 4, 400, 32

LABELS = [3, 50, 7]

WAYS: list[Mapping[str, object]] = [
    {"pooling": Pooling("embed", normalizes=True)},
    {"pooling": Pooling("embed", way="mean", dimensions=5, normalizes=True)},
    {"max_tokens": 50},
    {"pooling": Pooling("embed", way="weighted_mean")},
    {"pooling": Pooling("labels", label_ids=pack_int32(LABELS), way="mean")},
    {"pooling": Pooling("embed", way="cls")},
    {"max_tokens": 50, "num_prompt_logprobs": 1},
    {"pooling": Pooling("token_embed", normalizes=True)},
    {"pooling": Pooling("labels", label_ids=pack_int32(LABELS[:1]))},
]


class Served:
    """A checkpoint as transformers and as a scheduler with a small cache see it."""

    def __init__(self, path: Path):
        self.path = path
        self.reference = build_checkpoint(path, "qwen3-gqa-tied", intermediate_size=96, head_dim=32)
        self.config = make_config(path, block_size=PAGE_SIZE, num_pages=PLENTY)
        self.runner: Runner = load_runner(self.config, lambda text, fraction: None)

    def pool(self, request: UserMsg) -> Tensor:
        pooling = request.sampling_params.pooling
        assert pooling is not None
        ids = torch.tensor([list(memoryview(request.input_ids).cast("i"))])
        with torch.inference_mode():
            if pooling.kind == "labels":
                labels = list(memoryview(pooling.label_ids).cast("i"))
                return self.reference(ids).logits[0, -1].log_softmax(-1)[labels]
            hidden_LE = self.reference.base_model(ids)[0][0]
        places_L1 = torch.arange(1.0, len(hidden_LE) + 1)[:, None]
        pooled = {
            "last": hidden_LE[-1],
            "cls": hidden_LE[0],
            "mean": hidden_LE.mean(0),
            "max": hidden_LE.amax(0),
            "weighted_mean": (hidden_LE * places_L1).sum(0) / places_L1.sum(),
        }[pooling.way]
        pooled = hidden_LE if pooling.kind == "token_embed" else pooled[: pooling.dimensions or None]
        return torch.nn.functional.normalize(pooled, dim=-1).flatten() if pooling.normalizes else pooled


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("pooled"))


def some_requests() -> list[UserMsg]:
    """Every second prompt begins like the one before, so that the cache holds some of it."""
    chooser, prompts = random.Random(5), [[3]]
    for index, length in enumerate([2, 17, 60, 62, 34, 70, 71, 5, 40, 45, 28, 29, 33, 34, 12, 50, 51]):
        shared = prompts[-1][: length - 1] if index % 2 else []
        prompts.append(shared + [chooser.randrange(VOCAB_SIZE) for _ in range(length - len(shared))])
    return [
        user_msg(uid, prompt, **{"max_tokens": 0, "ignore_eos": True, **WAYS[uid % len(WAYS)]})
        for uid, prompt in enumerate(prompts)
    ]


def run(
    runner: Runner, requests: list[UserMsg], num_pages: int, num_step_tokens: int
) -> tuple[dict[int, bytes], Scheduler]:
    budget = Budget(max_num_seqs=12, max_num_batched_tokens=num_step_tokens)
    scheduler = Scheduler(BlockAllocator(num_pages, PAGE_SIZE), Limits(CONTEXT, VOCAB_SIZE), budget)
    inbox, vectors = Inbox(), dict[int, bytes]()
    for request in requests:
        scheduler.receive(request)
    while (batch := scheduler.schedule()) is not None:
        scheduler.commit(*run_step(runner.run, batch))
        replies = scheduler.pop_replies()
        inbox.take(replies)
        vectors |= {reply.uid: reply.values for reply in replies if isinstance(reply, PooledReply)}
    scheduler.check()
    assert [row.error for row in inbox.finished.values()] == [None] * len(requests)
    return vectors, scheduler


@pytest.mark.parametrize(("num_pages", "num_step_tokens"), [(PLENTY, 4096), (PLENTY, 16), (SCARCE, 16)])
def test_vectors_are_those_of_transformers(served: Served, num_pages: int, num_step_tokens: int):
    requests = some_requests()
    vectors, scheduler = run(served.runner, requests, num_pages, num_step_tokens)
    assert (scheduler.gauges()["preemptions"] > 0) == (num_pages == SCARCE)
    pooled = {request.uid: request for request in requests if request.sampling_params.pooling}
    assert set(vectors) == set(pooled)
    for uid, values in vectors.items():
        expected = served.pool(pooled[uid])
        torch.testing.assert_close(torch.tensor(unpack_float32(values)), expected.flatten(), rtol=0, atol=2e-5)


def test_the_maximum_over_chunks_is_that_of_transformers(served: Served):
    requests = [user_msg(uid, list(range(uid, 60)), 0, pooling=Pooling("embed", way="max")) for uid in range(1, 9)]
    for uid, values in run(served.runner, requests, PLENTY, 16)[0].items():
        torch.testing.assert_close(torch.tensor(unpack_float32(values)), served.pool(requests[uid - 1]))


def test_bits_do_not_depend_on_order_chunks_or_cache(served: Served):
    requests = [request for request in some_requests() if request.sampling_params.pooling]
    expected, _ = run(served.runner, requests, PLENTY, 4096)
    for num_step_tokens in (4096, 64, 16):
        shuffled = random.Random(num_step_tokens).sample(requests, len(requests))
        assert run(served.runner, shuffled, PLENTY, num_step_tokens)[0] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logprobs_of_labels_are_not_rounded_to_the_dtype_of_activations(served: Served, dtype: str):
    """Documents that a reranker scores by two labels would have equal scores otherwise."""
    config = make_config(served.path, block_size=PAGE_SIZE, num_pages=PLENTY, dtype=dtype)
    runner = load_runner(config, lambda text, fraction: None)
    kinds = [Pooling("labels", label_ids=pack_int32(LABELS[:2])), Pooling("embed", normalizes=False)]
    requests = [
        user_msg(2 * first + index, list(range(first, first + 9)), 0, pooling=pooling)
        for first in range(40)
        for index, pooling in enumerate(kinds)
    ]
    found, _ = run(runner, requests, PLENTY, 4096)
    values = [torch.tensor(unpack_float32(found[uid])) for uid in range(80)]
    logprobs_NL, hidden_NE = torch.stack(values[::2]), torch.stack(values[1::2])
    head_LE = served.reference.get_output_embeddings().weight[LABELS[:2]].detach().to(hidden_NE.dtype)
    logits_NL = hidden_NE @ head_LE.to(getattr(torch, dtype)).float().T
    scores_N, expected_N = (each[:, 0] - each[:, 1] for each in (logprobs_NL, logits_NL))
    torch.testing.assert_close(scores_N, expected_N, rtol=0, atol=1e-5)
    assert len(set(scores_N.tolist())) == 40
    assert logprobs_NL.exp().sum(1).max() <= 1


def test_a_device_with_its_own_memory_gives_the_same_vectors(served: Served):
    with late_backend(LateDevice, no_triton):
        gpu = load_runner(served.config, lambda text, fraction: None)
    requests = some_requests()
    expected, _ = run(served.runner, requests, PLENTY, 16)
    for uid, values in run(gpu, requests, PLENTY, 16)[0].items():
        torch.testing.assert_close(torch.tensor(unpack_float32(values)), torch.tensor(unpack_float32(expected[uid])))


def test_an_encoders_rows_are_the_same_alone_and_packed_in_every_order(tmp_path: Path):
    write_tiny_bert(tmp_path)
    facts = read_model_facts(ModelConfig(), tmp_path, tmp_path, "bert")
    config = make_config(tmp_path, block_size=PAGE_SIZE, num_pages=PLENTY)
    runner = load_runner(msgspec.structs.replace(config, facts=facts), lambda text, fraction: None)
    pooling, chooser = Pooling("embed", way="mean", normalizes=True, is_whole=True), random.Random(2)
    prompts = [[chooser.randrange(256) for _ in range(length)] for length in (1, 2, 7, 30, 31, 64, 90, 5)]
    starts = [length // 2 if length > 20 else 0 for length in map(len, prompts)]
    requests = [
        user_msg(uid, prompt, 0, pooling=msgspec.structs.replace(pooling, second_start=start))
        for uid, (prompt, start) in enumerate(zip(prompts, starts, strict=True))
    ]
    alone = {uid: run(runner, [request], PLENTY, 256)[0][uid] for uid, request in enumerate(requests)}
    reference = transformers.BertModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    for uid, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
        types = [int(0 < start <= place) for place in range(len(prompt))]
        with torch.inference_mode():
            hidden_LE = reference(torch.tensor([prompt]), token_type_ids=torch.tensor([types]))[0][0]
        expected = torch.nn.functional.normalize(hidden_LE.mean(0), dim=0)
        torch.testing.assert_close(torch.tensor(unpack_float32(alone[uid])), expected, rtol=0, atol=1e-6)
    for num_step_tokens in (256, 128, 90):
        for _ in range(4):
            chooser.shuffle(requests)
            assert run(runner, requests, PLENTY, num_step_tokens)[0] == alone
