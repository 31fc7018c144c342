"""The scheduler is killed under streams of a trained model with states: no token changes."""

import signal
from pathlib import Path

import pytest
import torch
import transformers

from tests.ring.client import body
from tests.ring.conftest import RESTART_FLAGS, Start
from tests.ring.test_restart import MAX_TRIES, Killer
from tests.scheduler_proc.computing.model.trained.train_models import CONTEXT, FOLDER
from tests.scheduler_proc.computing.reference import assert_greedy
from tests.tiny_llama import write_tokenizer

pytestmark = pytest.mark.ring

NAME = "qwen3_5"
OUTPUT_TOKENS = 200
PROMPT_LENS = (20, 100, 101, 250)


def test_a_kill_changes_no_token(tmp_path: Path, start_ring: Start) -> None:
    for file in (FOLDER / NAME).iterdir():
        (tmp_path / file.name).symlink_to(file)
    write_tokenizer(tmp_path, 256)
    ring = start_ring(tmp_path, *RESTART_FLAGS)
    text = (FOLDER / "held_out.txt").read_bytes()
    prompts = [list(text[CONTEXT * index :][:length]) for index, length in enumerate(PROMPT_LENS)]
    requests = [body(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True) for prompt in prompts]
    killer = Killer(ring, "scheduler", (20 * len(requests), 90 * len(requests)), signal.SIGKILL)
    for _ in range(MAX_TRIES):  # a slow client sees the tokens only at the end
        killer.arm()
        got = ring.generate_all(requests, killer)
        ring.wait_for_restart("scheduler", killer.num_restarts)
        if max(reply.attempts for reply in got) > 1:
            break
    assert max(reply.attempts for reply in got) > 1, "the scheduler never died in mid-stream"
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER / NAME, dtype=torch.float32)
    for prompt, reply in zip(prompts, got, strict=True):
        assert len(reply.token_ids) == OUTPUT_TOKENS
        assert_greedy(model, prompt, reply.token_ids, f"{NAME}, prompt of {len(prompt)}")
