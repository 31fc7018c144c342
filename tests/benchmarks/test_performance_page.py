from benchmarks.performance_page import DOCS, RESULTS, make_pages


def test_the_pages_are_those_of_the_committed_results() -> None:
    for name, text in make_pages(RESULTS).items():
        assert (DOCS / name).read_text(encoding="utf-8") == text
