"""A server of a model that only transformers computes: its tokens, also after its scheduler has been killed."""

import random
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint
from tests.ring.client import RingClient, body
from tests.ring.conftest import RESTART_FLAGS
from tests.ring.test_restart import MAX_TRIES
from tests.scheduler_proc.computing.reference import assert_greedy
from tests.tiny_llama import write_tokenizer

pytestmark = pytest.mark.ring

NUM_STREAMS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 30, 60


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gpt_neox")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def reference(model_dir: Path) -> "transformers.PreTrainedModel":
    return build_checkpoint(model_dir, "gpt_neox", architectures=["GPTNeoXForCausalLM"])


@pytest.fixture(scope="module")
def ring(model_dir: Path, reference: "transformers.PreTrainedModel", start_ring: Any) -> RingClient:
    return start_ring(model_dir, *RESTART_FLAGS, "--speculative", "ngram", "--max-num-batched-tokens", "16")


def test_streams_of_transformers_tokens_continue_when_the_scheduler_dies(
    ring: RingClient, reference: "transformers.PreTrainedModel"
) -> None:
    assert PROMPT_TOKENS + OUTPUT_TOKENS <= CONTEXT
    rng, num_ids = random.Random(3), min(VOCAB_SIZE, 250)
    prompts = [[rng.randrange(3, num_ids) for _ in range(PROMPT_TOKENS)] for _ in range(NUM_STREAMS)]
    requests = [body(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, temperature=0) for prompt in prompts]
    undisturbed = ring.generate_all(requests)
    for _ in range(MAX_TRIES):  # on a busy machine all streams may have ended when the scheduler dies
        num_restarts = ring.status("scheduler")["num_restarts"] + 1
        continued = ring.generate_disturbed(requests, lambda: ring.kill("scheduler"))
        for prompt, before, after in zip(prompts, undisturbed, continued, strict=True):
            assert before.token_ids == after.token_ids
            assert len(after.token_ids) == OUTPUT_TOKENS
            assert_greedy(reference, prompt, after.token_ids, "a stream")
        ring.wait_for_restart("scheduler", num_restarts)
        if max(reply.attempts for reply in continued) > 1:
            break
    else:
        raise AssertionError("the scheduler never died in mid-stream")
    ring.wait_until_empty()
    assert ring.gauges("scheduler")["steps"] > 0
    assert ring.run_dir.weights_file.stat().st_size == 0
