from benchmarks.page.first_page import first_page_table
from benchmarks.performance_page import DOCS, RESULTS, ROOT, make_pages


def test_the_pages_are_those_of_the_committed_results() -> None:
    for name, text in make_pages(RESULTS).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text


def test_the_readme_has_the_table_of_one_run() -> None:
    assert first_page_table(RESULTS) in (ROOT / "README.md").read_text(encoding="utf-8")
