from frontend.api.answers.logprob_fields import TokenNames, mean_logprob
from tests.frontend.frontend_run import position_logprobs


def test_tokens_that_look_the_same_keep_the_likeliest():
    """Three parts of characters, all shown as the replacement character."""
    entry = position_logprobs(1, "�", -2.0, 0, (2, "�", -0.5), (3, "a", -1.0), (4, "�", -3.0))
    assert TokenNames().completion([entry], 0).top_logprobs == [{"�": -0.5, "a": -1.0}]
    assert TokenNames(as_ids=True).completion([entry], 0).top_logprobs == [
        {"token_id:1": -2.0, "token_id:2": -0.5, "token_id:3": -1.0, "token_id:4": -3.0}
    ]


def test_offsets_count_from_the_beginning_of_the_choice():
    entries = [position_logprobs(1, "a", -1.0, 0), position_logprobs(2, "b", -1.0, 1)]
    assert TokenNames().completion(entries, 5).text_offset == [5, 6]


def test_impossible_tokens_have_a_number():
    entry = position_logprobs(1, "a", float("-inf"), 0, (2, "b", float("-inf")))
    (shown,) = TokenNames().chat([entry]).content
    assert (shown.logprob, shown.top_logprobs[0].logprob) == (-9999.0, -9999.0)


def test_the_native_form_has_ids_and_bytes():
    (shown,) = TokenNames().native([position_logprobs(7, "ü", None, 0, (8, "b", -1.0))])
    assert (shown.token_id, shown.token, shown.bytes, shown.logprob) == (7, "ü", [195, 188], None)
    assert (shown.top[0].token_id, shown.top[0].logprob) == (8, -1.0)


def test_the_mean_ranks():
    assert mean_logprob([position_logprobs(1, "a", -1.0, 0), position_logprobs(2, "b", -2.0, 1)]) == -1.5
    assert mean_logprob([]) == float("-inf")
