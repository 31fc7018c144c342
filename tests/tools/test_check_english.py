"""The English check finds constructions in each language of the repository, and leaves good sentences alone."""

from pathlib import Path

import pytest

from tools import check_english


def names_of(path: Path, text: str) -> list[tuple[int, str]]:
    """Returns line and pattern of each finding in a file with this text."""
    path.write_text(text, encoding="utf-8")
    return [(finding.line, finding.name) for finding in check_english.check(path)]


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("Has the kernel read the file.", "has done"),
        ("Of the rows, the last one is cut.", "of first"),
        ("It counts. Those of a request come first.", "those of"),
        ("Returns so many tokens.", "so many"),
        ("Reads as many bytes as there are.", "so many"),
        ("Tells whether it serves.", "tells"),
        ("The frontend hears of it.", "hears"),
        ("What the file says.", "says"),
        ("Runs beside the others.", "beside"),
        ("The stream goes on.", "goes on"),
        ("Whoever asks gets it.", "nobody"),
        ("All rows but for the last.", "but for"),
        ("What is left waits.", "what is"),
        ("0 where there is none.", "where"),
        ("Raises `BootError` (2) where the file is gone.", "where"),
    ],
)
def test_each_construction_is_found(tmp_path: Path, sentence: str, name: str):
    assert names_of(tmp_path / "page.md", sentence) == [(1, name)]


@pytest.mark.parametrize(
    "sentence",
    [
        "Has finished.",
        "Of course it waits.",
        "It takes so much memory that it fails.",
        "The token can tell both apart.",
        "It is not for clients but for operators.",
        "Returns the directory where the file is.",
        "What is a page?",
        "Where the time goes on a CPU.",
        "The flag `beside` and the text “goes on” are quoted.",
        "See [it](docs/what-they-ask-beside.md).",
    ],
)
def test_good_sentences_are_left_alone(tmp_path: Path, sentence: str):
    assert names_of(tmp_path / "page.md", sentence) == []


def test_a_sentence_is_read_across_lines(tmp_path: Path):
    assert names_of(tmp_path / "page.md", "A stream that\ngoes\non, and one more\nthat goes on.\n") == [
        (2, "goes on"),
        (4, "goes on"),
    ]


def test_pages_have_paragraphs_items_and_tables(tmp_path: Path):
    page = "# What is it\n\n```\nit goes on\n```\n\n- Of it\n\n| a | b |\n|---|---|\n| none | it goes on |\n"
    assert names_of(tmp_path / "page.md", page) == [(7, "of first"), (11, "goes on")]


PYTHON = '''"""Runs beside it."""

NAME = "it goes on and on"  # nobody reads it
"""Of a name."""


def run():
    # A comment that goes
    # on.
    """Tells whether.

    So many.
    """
'''


def test_python_has_docstrings_comments_and_messages(tmp_path: Path):
    found = [
        (1, "beside"),
        (3, "goes on"),
        (3, "nobody"),
        (4, "of first"),
        (8, "goes on"),
        (10, "tells"),
        (12, "so many"),
    ]
    assert sorted(names_of(tmp_path / "module.py", PYTHON)) == sorted(found)


def test_strings_of_tests_are_not_read(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    assert (3, "goes on") not in names_of(tmp_path / "tests/test_module.py", PYTHON)


def test_names_of_python_code_are_read(tmp_path: Path):
    source = "def tell_end(wanted, found):\n    self.note_x = most_rows = found\n    noted_by = most_common\n"
    path = tmp_path / "names.py"
    path.write_text(source, encoding="utf-8")
    found = [(finding.line, finding.text) for finding in check_english.check(path)]
    assert found == [(1, "tell_end"), (1, "wanted"), (2, "most_rows"), (2, "note_x"), (3, "noted_by")]


def test_c_and_javascript_have_comments_and_messages(tmp_path: Path):
    source = 'int a; // goes on\n/* nobody\n   goes on */\nconst char *b = "it goes on // here";\n'
    found = [(1, "goes on"), (2, "nobody"), (3, "goes on"), (4, "goes on")]
    assert sorted(names_of(tmp_path / "kernel.c", source)) == found
    assert sorted(names_of(tmp_path / "page.js", source)) == found


def test_other_files_have_comments(tmp_path: Path):
    assert names_of(tmp_path / "Makefile", "# It goes\n# on.\nrun: # beside\n") == [(1, "goes on"), (3, "beside")]


def test_the_command_prints_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "page.md").write_text("All is well.\n\nIt goes on.\n")
    monkeypatch.chdir(tmp_path)
    assert check_english.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("page.md:3: [goes on] It «goes on».: continues")
    (tmp_path / "page.md").write_text("All is well.\n")
    assert check_english.main([str(tmp_path)]) == 0
