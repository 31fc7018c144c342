from array import array

import pytest

from messages.columns import pack_float32, pack_int32, unpack_int32
from messages.errors import RequestError
from messages.ring.requests import SamplingParams
from tests.tokenizer_proc.parts import encoding_of
from tokenizer_proc.parameter_texts import with_text_biases

ENCODING = encoding_of(lambda text: [ord(letter) for letter in text.strip()])


def biased(*texts: tuple[str, float | None]) -> tuple[dict[int, float], list[list[int]]]:
    """Returns the biases and the bans in addition to a bias of 1.5 for "a" and a banned "z"."""
    params = SamplingParams(
        *(8,),
        bias_ids=pack_int32([ord("a")]),
        bias_values=pack_float32([1.5]),
        bad_word_ids=(pack_int32([ord("z")]),),
        bias_texts=texts,
    )
    made = with_text_biases(params, ENCODING, 128)
    biases = dict(zip(unpack_int32(made.bias_ids), array("f", made.bias_values), strict=True))
    return biases, [unpack_int32(word).tolist() for word in made.bad_word_ids]


def test_every_token_of_a_text_gets_the_bias():
    assert biased(("cd", -3.0)) == ({97: 1.5, 99: -3.0, 100: -3.0}, [[122]])


def test_biases_of_one_token_add_up():
    assert biased(("ab", 2.0), ("b", 0.5)) == ({97: 3.5, 98: 2.5}, [[122]])


def test_a_ban_is_one_of_each_token():
    assert biased(("cz", None)) == ({97: 1.5}, [[122], [99]])


@pytest.mark.parametrize("text", [" ", "é"])
def test_a_text_that_has_no_tokens_of_the_model_is_refused(text: str):
    with pytest.raises(RequestError, match="cannot be written in tokens") as caught:
        biased((text, 1.0))
    assert caught.value.info.param == "logit_bias"
