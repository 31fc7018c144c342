"""The small trained DeepSeek V3 with a trained head of multi-token prediction, in the form of V3's and GLM-4.7-Flash's.

`test_mtp_head.py` has what does not depend on the family.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from runtime.gguf.conversion import read_config
from runtime.gguf.gguf_file import read_gguf
from tests.runtime.gguf.test_architectures import GOLDEN
from tests.scheduler_proc.computing.model.trained.test_mtp_head import (
    GREEDY,
    SAMPLED,
    Service,
    assert_drafts,
    two_turns,
)
from tests.scheduler_proc.computing.model.trained.train_models import FOLDER
from tests.scheduler_proc.computing.model.trained.train_mtp_head import head_file

NAME, LAST = "deepseek_v3", "model.layers.3."
MODEL, HEAD = FOLDER / NAME, head_file(NAME)
Weights = dict[str, Tensor]


def write_checkpoint(path: Path, change: Callable[[Weights], object] = lambda weights: None) -> Path:
    """Writes the model with its head, next to which published checkpoints repeat the embedding and the model's head."""
    weights = load_file(MODEL / "model.safetensors") | load_file(HEAD)
    table = weights["model.embed_tokens.weight"]
    weights |= {f"{LAST}{name}.weight": table.clone() for name in ("embed_tokens", "shared_head.head")}
    change(weights)
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text((MODEL / "config.json").read_text())
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("mtp"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    text = (FOLDER / "held_out.txt").read_bytes()
    return [list(text[512 * row : 512 * row + 40 + 11 * row]) for row in range(3)]


WAYS: list[tuple[dict[str, Any], str]] = [
    ({"num_speculative_tokens": 3}, "accepted_tokens"),
    ({"num_speculative_tokens": 2, "max_num_batched_tokens": 7, "max_num_seqs": 1}, "accepted_tokens"),
    ({"num_speculative_tokens": 3, "num_pages": 24, "max_model_len": 260}, "preemptions"),
]
"""Flags that cut steps in other ways, and what they count then."""


def test_no_token_changes(checkpoint: Path, prompts: list[list[int]]) -> None:
    expected = two_turns(Service(checkpoint), prompts, SAMPLED)
    for flags, counter in WAYS:
        service = Service(checkpoint, speculative="mtp", **flags)
        assert two_turns(service, prompts, SAMPLED) == expected
        assert service.scheduler.gauges()[counter] > 0


def test_drafts_are_those_of_transformers_blocks(checkpoint: Path, prompts: list[list[int]]) -> None:
    service = Service(checkpoint, speculative="mtp", num_speculative_tokens=3, max_num_seqs=2)
    service.generate(prompts[:2], 30, **GREEDY)
    assert_drafts(NAME, service.proposed)


def swap_inputs(weights: Weights) -> None:
    weights[f"{LAST}eh_proj.weight"] = weights[f"{LAST}eh_proj.weight"].roll(96, 1)


MISTAKES: dict[str, Callable[[Weights], object]] = {
    "the state comes before the embedding": swap_inputs,
    "there is no norm of states": lambda weights: weights[f"{LAST}hnorm.weight"].zero_(),
    "there are no experts": lambda weights: weights[f"{LAST}mlp.experts.down_proj"].zero_(),
}


def acceptance(path: Path, prompts: list[list[int]]) -> float:
    service = Service(path, speculative="mtp", num_speculative_tokens=1)
    service.generate(prompts, 60, **SAMPLED)
    gauges = service.scheduler.gauges()
    return gauges["accepted_tokens"] / gauges["draft_tokens"]


def test_most_draft_tokens_are_accepted_and_mistakes_show(
    checkpoint: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    usual = acceptance(checkpoint, prompts)
    print(f"accepted: {usual:.1%}")
    assert usual > 0.7
    for mistake, change in MISTAKES.items():
        found = acceptance(write_checkpoint(tmp_path, change), prompts)
        print(f"{mistake}: {found:.1%}")
        assert found < usual - 0.02


@pytest.mark.parametrize("name", ["deepseek32", "glm-dsa"])
def test_a_file_in_gguf_has_the_head(name: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(GOLDEN / f"{name}.gguf")
    (tmp_path / "config.json").write_text(json.dumps(read_config(read_gguf(tmp_path))))
    expected = Service(tmp_path, max_model_len=96).generate([[3, 1, 4]], 20, **GREEDY)
    service = Service(tmp_path, max_model_len=96, speculative="mtp", num_speculative_tokens=2)
    assert service.generate([[3, 1, 4]], 20, **GREEDY) == expected
    assert service.proposed
