"""On a CPU a token's logprobs are the same bits however it is computed, in every family and every form of weights.

Any form and any way come together in some family; `python -m tests.scheduler_proc.bits` compares all with all.
"""

import math
from pathlib import Path

import pytest

from scheduler_proc.computing.backends.cpu import cores
from tests.checkpoints import EVERY_ARCHITECTURE, build_checkpoint
from tests.scheduler_proc.bits import FORMS, NUM_PAGES, PAGE_SIZE, WAYS, Texts, open_texts
from tests.scheduler_proc.computing.ranks import ranks_of

LAST = [variants[-1] for variants in EVERY_ARCHITECTURE.values()]
SOME_FORMS = [form for form in FORMS if form != "Q4_K_M"]
"""The forms of families with any sizes."""

CASES = [
    *(("llama-gqa-tied", form) for form in FORMS),
    *((variant, SOME_FORMS[index % len(SOME_FORMS)]) for index, variant in enumerate(LAST) if "gpt2" not in variant),
    *(("gpt2", form) for form in ("float32", "int8", "int4-float32")),
]


def ways_of(variant: str, form: str) -> list[str]:
    """Returns the part of the ways that the form has in this family: its families share all of them."""
    families = [name for name, own in CASES if own == form]
    num_ways = math.ceil(len(WAYS) / len(families))
    first = families.index(variant) * num_ways
    return [list(WAYS)[number % len(WAYS)] for number in range(first, first + num_ways)]


@pytest.mark.parametrize(("variant", "form"), CASES)
def test_every_way_gives_the_same_bits(variant: str, form: str, tmp_path: Path) -> None:
    texts = open_texts(tmp_path, variant, form)
    for name in ways_of(variant, form):
        found = WAYS[name](texts)
        assert not found, f"{name}: {len(found)} tokens differ, first {found[0]}"


def test_ranks_give_the_bits_of_the_same_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "allowed_cpus", lambda: frozenset(range(8)))
    build_checkpoint(tmp_path, "gemma2", intermediate_size=128)
    flags = {"dtype": "bfloat16", "block_size": PAGE_SIZE, "num_pages": NUM_PAGES}
    with ranks_of(tmp_path, 2, tmp_path / "ranks", **flags) as runners:
        texts = Texts(runners[0])
        for name in ("as_one_prompt", "with_others", "continued"):
            assert not WAYS[name](texts), name
