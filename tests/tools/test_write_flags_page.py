from tools.write_flags_page import PAGE, make_page


def test_the_page_has_the_flags_of_the_parser():
    assert PAGE.read_text(encoding="utf-8") == make_page(), "write it again: python -m tools.write_flags_page"
