"""The files of docs/inside/reading.md are few, short, and import of ours only each other."""

import re

from tests.code_lines import ROOT, count_lines
from tests.import_closure import find_closure, imports_of

PAGE = (ROOT / "docs/inside/reading.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\d+\. `([\w/]+\.py)` ", PAGE, re.MULTILINE)
MAX_FILES = 45
MAX_LINES = 5_000


def test_each_file_is_there_once_and_has_its_number():
    assert len(set(LISTED)) == len(LISTED) > 0
    assert all((ROOT / name).is_file() for name in LISTED)
    assert [int(number) for number in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)] == list(range(1, len(LISTED) + 1))


def test_they_are_few_and_short():
    assert len(LISTED) <= MAX_FILES
    assert sum(count_lines(ROOT / name) for name in LISTED) <= MAX_LINES


def test_each_imports_of_ours_only_files_of_the_list():
    outside = {name: sorted(imports_of(name) - set(LISTED)) for name in LISTED}
    assert not {name: files for name, files in outside.items() if files}


def test_a_closure_follows_imports_and_leaves_out_what_it_is_told_to():
    policy = "scheduler_proc/deciding/policy.py"
    allocator = "scheduler_proc/deciding/pages/block_allocator.py"
    closure = find_closure([policy])
    assert {policy, allocator, "messages/ring/steps.py"} <= closure
    assert allocator not in find_closure([policy], without=set(imports_of(policy)) | {allocator})
