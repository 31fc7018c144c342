"""The budget of the product's code, and the counting of lines."""

from pathlib import Path

import pytest

from tests.code_lines import BUDGET, count_groups, count_lines, find_group

PYTHON = '''"""A module.

More of it.
"""

import os  # code, with a comment

# A comment.
NUMBER = (
    1
)
"""What it is."""


def function() -> str:
    """A docstring."""
    return """a string
    of two lines"""
'''
C = """/* A comment
   of two lines */
#include <stdint.h>

int one(void) { return 1; }  // one
"""


@pytest.mark.parametrize(("name", "text", "expected"), [("a.py", PYTHON, 7), ("a.c", C, 2)])
def test_comments_docstrings_and_blank_lines_are_no_code(tmp_path: Path, name: str, text: str, expected: int):
    (tmp_path / name).write_text(text, encoding="ascii")
    assert count_lines(tmp_path / name) == expected


def test_every_file_of_the_product_belongs_somewhere():
    assert find_group("kernels/cpu/source/crew.c") == "CPU backend"
    assert find_group("kernels/operations/rope.py") == "operations and references"
    assert find_group("scheduler_proc/process.py") == "scheduler"
    assert find_group("tests/code_lines.py") is None


def test_the_code_is_within_its_budget():
    """`make lines` prints the table."""
    assert count_groups().total() <= BUDGET
