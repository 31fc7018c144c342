from frontend.generation import Generation
from messages.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final

MESSAGE = TokenizeMsg(7, 0, "hi", b"", SamplingParams(8), Stamps())


def make(*, wakes_at_tokens: bool = True) -> Generation:
    return Generation(MESSAGE, "id", wakes_at_tokens=wakes_at_tokens)


def test_increments_that_were_not_taken_merge():
    generation = make()
    generation.add(1, "a")
    assert generation.take() == ("a", [1])
    generation.add(2, "b")
    generation.add(3, "")
    generation.add(4, "c")
    assert generation.take() == ("bc", [2, 3, 4])
    assert not generation.has_news


def test_a_token_without_text_is_news():
    generation = make()
    generation.add(1, "")
    assert generation.has_news
    assert generation.take() == ("", [1])


def test_finish_adds_the_last_tokens_and_keeps_what_a_continuation_needs():
    generation = make()
    generation.add(1, "ab")
    generation.finish(final(MESSAGE, "cde", (2, 3)))
    assert generation.take() == ("abcde", [1, 2, 3])
    assert generation.output_ids.tolist() == [1, 2, 3]
    assert generation.num_chars == 5


def test_tokens_wake_only_those_who_want_them():
    streamed, whole = make(), make(wakes_at_tokens=False)
    for generation in (streamed, whole):
        generation.add(1, "a")
    assert streamed.changed.is_set()
    assert not whole.changed.is_set()
    whole.finish(final(MESSAGE))
    assert whole.changed.is_set()


def test_an_abandoned_generation_keeps_ids_but_no_text():
    generation = make()
    generation.add(1, "a")
    generation.abandon()
    generation.add(2, "b")
    generation.finish(final(MESSAGE, "c", (3,)))
    assert not generation.has_news
    assert generation.output_ids.tolist() == [1, 2, 3]
    assert generation.num_chars == 3
