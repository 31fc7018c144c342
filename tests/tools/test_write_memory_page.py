from tools.write_memory_page import PAGE, make_page


def test_the_page_has_the_counts_of_the_server():
    assert PAGE.read_text(encoding="utf-8") == make_page(), "write it again: python -m tools.write_memory_page"
