"""The list of docs/inside/reading.md is short, and what it leaves out is named there."""

import re

from tests.code_lines import ROOT, count_lines
from tests.import_closure import find_closure, imports_of

PAGE = (ROOT / "docs/inside/reading.md").read_text(encoding="utf-8")
LIST, LEFT_OUT = PAGE.split("\n## ")[1:3]
NUMBERED = re.findall(r"^(\d+)\. `([\w/]+\.py)` ", LIST, re.MULTILINE)
NAMES = [name for _, name in NUMBERED]
ROOMS = set(re.findall(r"^\| `([\w/]+)/` \| ", LEFT_OUT, re.MULTILINE))
MAX_FILES = 45
MAX_LINES = 5_100


def test_the_list_leads_from_messages_to_logits():
    assert NAMES[0].startswith("messages/")
    assert {"scheduler_proc/deciding/policy.py", "scheduler_proc/computing/model/decoder.py"} <= set(NAMES)
    assert NAMES[-1] == "scheduler_proc/computing/sampling/results.py"


def test_each_file_is_there_once_and_has_its_number():
    assert len(set(NAMES)) == len(NAMES)
    assert all((ROOT / name).is_file() for name in NAMES)
    assert [int(number) for number, _ in NUMBERED] == list(range(1, len(NAMES) + 1))


def test_it_is_read_in_an_afternoon():
    assert len(NAMES) <= MAX_FILES
    assert sum(count_lines(ROOT / name) for name in NAMES) <= MAX_LINES


def test_what_it_imports_besides_is_in_a_room_that_the_page_explains():
    outside = {other for name in NAMES for other in imports_of(name) if not other.endswith("__init__.py")} - set(NAMES)
    rooms = {other: find_room(other) for other in outside}
    assert {room for room in rooms.values() if room} == ROOMS
    assert not [other for other, room in rooms.items() if room is None]


def find_room(name: str) -> str | None:
    """Returns the room of the page with the file, directly or one directory below; `None` if there is none."""
    *parents, _ = name.split("/")
    return next((room for room in ("/".join(parents), "/".join(parents[:-1])) if room in ROOMS), None)


def test_a_closure_follows_imports_and_leaves_out_what_is_excluded():
    policy = "scheduler_proc/deciding/policy.py"
    plan = "scheduler_proc/deciding/step_plan.py"
    closure = find_closure([policy])
    assert {policy, plan, "messages/ring/timeline.py"} <= closure
    assert plan not in find_closure([policy], without=set(imports_of(policy)) | {plan})
