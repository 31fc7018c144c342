"""The spine of the scheduler's process names no optional feature: each is declared in files of its own."""

import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SPINE = [
    "scheduler_proc/deciding/scheduler.py",
    "scheduler_proc/deciding/policy.py",
    "scheduler_proc/deciding/stages.py",
    "scheduler_proc/deciding/results.py",
    "scheduler_proc/deciding/in_flight.py",
    "scheduler_proc/deciding/pages/block_allocator.py",
    "scheduler_proc/deciding/pages/running_request.py",
    "scheduler_proc/deciding/rows/batch_columns.py",
    "scheduler_proc/computing/load_runner.py",
    "scheduler_proc/computing/step/inputs.py",
    "scheduler_proc/computing/step/packing.py",
    "scheduler_proc/computing/step/shapes.py",
    "scheduler_proc/computing/step/dummy_batch.py",
    "scheduler_proc/computing/step/rewritten_batches.py",
    "scheduler_proc/computing/backends/cpu/forward_passes.py",
    "scheduler_proc/computing/backends/cuda/forward_passes.py",
    "scheduler_proc/computing/backends/cuda/captured_steps.py",
]
"""The files that loading and every step pass through."""

FEATURES = re.compile(
    r"window|state_(slots?|sources?|rows)|has_states|cache\.states|hidden_slots|kept_hidden|adapter|lora|token_type"
    r"|state_?plan|stateslots|checkpoint|tiers|placed_",
    re.IGNORECASE,
)


def identifiers_of(path: Path) -> list[tuple[int, str]]:
    """Returns the names in the code of a file, with their lines, and its texts other than docstrings."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type != tokenize.COMMENT]
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.NAME]


@pytest.mark.parametrize("name", SPINE)
def test_the_spine_names_no_feature(name: str) -> None:
    found = identifiers_of(ROOT / name)
    assert len(found) > 100
    assert not [f"{name}:{line} names {text}" for line, text in found if FEATURES.search(text)]


@pytest.mark.parametrize("name", ["windows", "states", "kept_hidden", "adapters", "token_types", "placed_rows"])
def test_what_it_looks_for_is_found_where_a_feature_is_declared(name: str) -> None:
    found = identifiers_of(ROOT / f"scheduler_proc/computing/step/features/{name}.py")
    assert [text for _, text in found if FEATURES.search(text)]
