"""On a GPU four layers of Qwen3-0.6B's shape in bfloat16 give the logits that transformers computes in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from messages.columns import unpack_float32, unpack_int32
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, run_step

SHAPE = {
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
PROMPT_LENS, CHUNK, NUM_STEPS, NUM_TOP = (7, 200, 2_500), 1_024, 4, 20
MOST, MEAN = 3.0, 1.5
"""Differences from float32, at most and in the mean, over those of transformers in bfloat16: rounding makes both, so
only a wrong computation makes ours much larger."""


def collect(runner: Runner, rows: list[Row]) -> list[tuple[Row, int, dict[int, float]]]:
    """Runs prompts in chunks and then decode steps; returns rows, places and logprobs of the likeliest tokens."""
    found: list[tuple[Row, int, dict[int, float]]] = []
    for step in range(100):
        planned = [(row, min(CHUNK, len(row.ids) - row.num_computed)) for row in rows]
        places = {row.uid: len(row.ids) - 1 for row, num_new in planned if row.num_computed + num_new == len(row.ids)}
        ran, output = run_step(runner, step, planned, 16)
        columns = output.logprobs
        if columns is None:
            continue
        ids, logprobs = unpack_int32(columns.top_ids), unpack_float32(columns.top_logprobs)
        for index, row in enumerate(row for row, _ in ran if row.uid in places):
            top = slice(index * NUM_TOP, (index + 1) * NUM_TOP)
            found.append((row, places[row.uid], dict(zip(ids[top], logprobs[top], strict=True))))
        if all(len(row.output_ids) >= NUM_STEPS for row in rows):
            break
    return found


def check_logits(path: Path, device: str, shape: dict[str, Any], prompt_lens: tuple[int, ...], **flags: object) -> None:
    model = build_checkpoint(path, "qwen3-gqa-tied", **shape)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1 if weight.dim() > 1 else 1.0)  # trained models amplify rounding less
    model.to(torch.bfloat16).save_pretrained(path)
    sizes = {"device": device, "dtype": "bfloat16", "num_pages": 512, "max_num_seqs": 64}
    config = make_config(path, **sizes, max_num_batched_tokens=4 * CHUNK, **flags)
    runner = load_runner(config, lambda text, fraction: None)
    assert runner.degraded == ""
    generator, free, rows = torch.Generator().manual_seed(5), iter(range(runner.num_pages)), list[Row]()
    params = SamplingParams(NUM_STEPS, temperature=0.0, num_logprobs=NUM_TOP)
    for uid, length in enumerate(prompt_lens):
        ids = torch.randint(model.config.vocab_size, (length,), generator=generator).tolist()
        pages = [next(free) for _ in range(-(-(length + NUM_STEPS + 1) // 16))]
        rows.append(Row(uid, ids, length, params, pages=pages))
    found = collect(runner, rows)
    assert len(found) >= NUM_STEPS * len(rows)
    # Read from the file: converting a model also rounds the frequencies of its rotations, and back they stay rounded.
    kind, dtypes = type(model), (torch.float32, torch.bfloat16)
    models = (kind.from_pretrained(path, dtype=dtype).to(device) for dtype in dtypes)
    exact, rounded = (compute_logprobs(each, rows, device) for each in models)
    own, theirs = list[Tensor](), list[Tensor]()
    for row, place, top in found:
        right, other = exact[row.uid][place], rounded[row.uid][place]
        own.append(torch.tensor(list(top.values())) - right[list(top)].cpu())
        # Each by its own likeliest tokens, which are those that rounding has favoured.
        theirs.append((other - right)[other.topk(NUM_TOP).indices].cpu())
    (mean, most), (their_mean, their_max) = (
        (float(each.mean()), float(each.max())) for each in map(absolute, (own, theirs))
    )
    print(f"in the mean {mean:.4f}, at most {most:.4f}; transformers in bfloat16 {their_mean:.4f}, {their_max:.4f}")
    assert most < MOST * their_max
    assert mean < MEAN * their_mean


def absolute(differences: list[Tensor]) -> Tensor:
    return torch.cat(differences).abs()


def compute_logprobs(model: Any, rows: list[Row], device: str) -> dict[int, Tensor]:
    """Returns what transformers computes for each row, by uid."""
    with torch.inference_mode():
        return {row.uid: logprobs_of(model(torch.tensor([row.ids], device=device)).logits) for row in rows}


def logprobs_of(logits_1TV: Tensor) -> Tensor:
    return logits_1TV[0].float().log_softmax(-1)


def test_the_comparison_itself_on_a_cpu(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 3_000, "head_dim": 64}
    check_logits(tmp_path, "cpu", SHAPE | shape | {"intermediate_size": 512}, (7, 130))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_logits_are_those_of_transformers(tmp_path: Path, enforce_eager: bool) -> None:
    """Prefills in chunks, mixed steps and decode rows, in tiles and with merges as the launch table has them."""
    check_logits(tmp_path, "cuda", SHAPE, PROMPT_LENS, enforce_eager=enforce_eager)
