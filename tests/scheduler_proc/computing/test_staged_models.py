"""Models of every architecture, and weights in blocks, on several stages against one process."""

from itertools import cycle
from pathlib import Path

import pytest

from kernels.formats.registry import BLOCK_FORMATS
from scheduler_proc.computing.backends.cpu import cores
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading import stage_placement
from scheduler_proc.computing.model.stage_split import find_cuts
from tests.checkpoints import EVERY_ARCHITECTURE, build_checkpoint, make_config
from tests.gguf_models import build_block_model
from tests.scheduler_proc.computing.drive import generate
from tests.scheduler_proc.computing.ranks import no_report, ranks_of
from tests.scheduler_proc.computing.test_pipeline import STAGED, described
from tests.scheduler_proc.computing.test_ranks import PARAMS, PROMPTS, SCHEDULE, decoder_of

OTHERS = [
    variants[0] for variants in EVERY_ARCHITECTURE.values() if {variant for variant, *_ in STAGED}.isdisjoint(variants)
]
"""A variant of each other architecture. Models that read images serve text only, as with --mmproj none."""


@pytest.fixture(autouse=True)
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))


@pytest.mark.parametrize(("variant", "num_stages"), list(zip(OTHERS, cycle((2, 3, 4)))))
def test_stages_of_every_architecture_give_the_tokens_of_one_process(
    tmp_path: Path, variant: str, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of few layers has fewer stages. Each stage measures its machine with weights of the model's form."""
    for name, least in {"MIN_WEIGHTS": 0, "MEASURED_BYTES": 1 << 16, "MEASURED_S": 0.0}.items():
        monkeypatch.setattr(stage_placement, name, least)
    build_checkpoint(tmp_path, variant)
    config = make_config(tmp_path)
    alone = load_runner(config, no_report)
    num_stages = min(num_stages, 1 + len(find_cuts(decoder_of(alone).model)))
    assert num_stages > 1
    prompts = [[token % 300 for token in prompt] for prompt in PROMPTS[1:3]]
    expected = generate(alone, prompts, 3, SCHEDULE)
    with ranks_of(tmp_path, 1, tmp_path / "ranks", num_stages) as (leader, *_):
        assert generate(leader, prompts, 3, SCHEDULE) == expected
        assert "alike: rank1 " in leader.placement["stages"]


@pytest.mark.parametrize(("num_stages", "dtype"), [(2, "float32"), (3, "bfloat16")])
def test_stages_of_weights_in_blocks_give_the_tokens_of_one_process(
    tmp_path: Path, num_stages: int, dtype: str
) -> None:
    """The head is in another form than the layers; each stage has blocks."""
    forms = {"output": "Q8_0", "ffn_down": "Q6_K"}
    model = build_block_model(
        tmp_path,
        "llama-mha",
        lambda name: next((form for part, form in forms.items() if f"{part}." in name), "Q4_K"),
        num_hidden_layers=3,
    )
    flags = {"dtype": dtype}
    expected = generate(load_runner(make_config(model.path, **flags), no_report), PROMPTS, 4, SCHEDULE, PARAMS)
    with ranks_of(model.path, 1, tmp_path / "ranks", num_stages, **flags) as runners:
        assert generate(runners[0], PROMPTS, 4, SCHEDULE, PARAMS) == expected
        for runner in runners:
            formats = {name for _, formats in described(runner).layer_kinds for name in formats}
            assert formats & set(BLOCK_FORMATS)
