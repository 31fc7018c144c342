from messages.ring.replies import DetokenizeMsg, ToDetokenizer
from tools.write_wire_page import PAGE, describe, make_page, structs_in


def test_the_page_is_that_of_the_structs():
    assert PAGE.read_text(encoding="utf-8") == make_page(), "write it again: python -m tools.write_wire_page"


def test_a_struct_is_shown_with_its_docstring_and_its_fields_in_order():
    text = describe(DetokenizeMsg)
    assert "the output of one step" in text
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows[:2] == ["| `step_id` | int |  |", "| `uids` | int64 column |  |"]
    assert "| `finished` | list of ([FinishedRow](#finishedrow)) | `()` |" in rows
    assert "| `logprobs` | [LogprobColumns](#logprobcolumns) or nothing | `None` |" in rows
    assert [row.split("`")[1] for row in rows] == list(DetokenizeMsg.__struct_fields__)


def test_a_union_names_its_structs():
    assert DetokenizeMsg in set(structs_in(ToDetokenizer))
