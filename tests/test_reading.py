"""The files of docs/inside/reading.md are few, short, and import of ours only files listed so far."""

import re

import pytest

from tests.code_lines import ROOT, count_lines
from tests.import_closure import find_closure, imports_of

PAGE = (ROOT / "docs/inside/reading.md").read_text(encoding="utf-8")
PARTS = PAGE.split("\n## ")[1:-1]
"""The lists: all sections except the last one."""
LISTED = [re.findall(r"^\d+\. `([\w/]+\.py)` ", part, re.MULTILINE) for part in PARTS]
MESSAGES, DECISIONS, OPERATIONS, MODEL = LISTED
BLOCKS = "scheduler_proc/computing/model/blocks/registry.py"
NOT_LISTED = "kernels/cpu/", "kernels/gpu/", "messages/config/", BLOCKS
"""The kernels of devices, the configuration, and the table of blocks."""
MAX_FILES = 45
MAX_LINES = 5_000


def test_the_lists_reach_the_scheduler_and_the_decoder():
    assert DECISIONS[-1] == "scheduler_proc/deciding/scheduler.py"
    assert MODEL[-1] == "scheduler_proc/computing/model/decoder.py"


def test_each_file_is_there_once_and_has_its_number():
    names = [name for listed in LISTED for name in listed]
    assert len(set(names)) == len(names)
    assert all((ROOT / name).is_file() for name in names)
    for part, listed in zip(PARTS, LISTED, strict=True):
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", part, re.MULTILINE)]
        assert numbers == list(range(1, len(listed) + 1)) != []


@pytest.mark.parametrize("listed", LISTED)
def test_they_are_few(listed: list[str]):
    assert len(listed) <= MAX_FILES


@pytest.mark.parametrize("listed", [MESSAGES + DECISIONS, OPERATIONS + MODEL])
def test_they_are_short(listed: list[str]):
    assert sum(count_lines(ROOT / name) for name in listed) <= MAX_LINES


def test_each_imports_of_ours_only_files_of_its_list_and_earlier_ones():
    seen: set[str] = set()
    for listed in LISTED:
        seen.update(listed)
        outside = {
            name: [other for other in sorted(imports_of(name) - seen) if not other.startswith(NOT_LISTED)]
            for name in listed
        }
        assert not {name: files for name, files in outside.items() if files}


def test_a_closure_follows_imports_and_leaves_out_what_it_is_told_to():
    policy = "scheduler_proc/deciding/policy.py"
    allocator = "scheduler_proc/deciding/pages/block_allocator.py"
    closure = find_closure([policy])
    assert {policy, allocator, "messages/ring/steps.py"} <= closure
    assert allocator not in find_closure([policy], without=set(imports_of(policy)) | {allocator})
