from messages.columns import unpack_int32
from messages.ring.dry import Dry
from tests.tokenizer_proc.parts import encoding_of
from tokenizer_proc.parameter_texts import with_breaker_ids

ENCODING = encoding_of(lambda text: [ord(character) for character in text])


def dry(*breakers: str) -> Dry:
    return Dry(1.0, 1.75, 2, -1, breakers)


def test_a_breaker_is_the_last_token_of_its_text():
    filled = with_breaker_ids(dry("\n", ":", "ab"), ENCODING, 256)
    assert filled is not None
    assert list(unpack_int32(filled.breaker_ids)) == [ord("\n"), ord(":"), ord("b")]


def test_one_that_the_model_does_not_have_breaks_nothing():
    filled = with_breaker_ids(dry("\u20ac", "x"), ENCODING, 256)
    assert filled is not None
    assert list(unpack_int32(filled.breaker_ids)) == [ord("x")]


def test_who_requests_none_gets_none():
    assert with_breaker_ids(None, ENCODING, 256) is None
    assert with_breaker_ids(dry(), ENCODING, 256) == dry()
