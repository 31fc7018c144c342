from benchmarks.performance_page import PAGE, RESULTS, make_page


def test_the_page_is_that_of_the_committed_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(RESULTS)
