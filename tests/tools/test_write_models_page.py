from tools.write_models_page import PAGE, make_page


def test_the_page_has_the_architectures_and_what_tests_compare():
    assert PAGE.read_text(encoding="utf-8") == make_page(), "write it again: python -m tools.write_models_page"
