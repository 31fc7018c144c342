"""Ids of pooled texts are those that the library gives with its own truncation and its own templates."""

import dataclasses
import random
from functools import partial

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from messages.columns import pack_int32, unpack_int32
from messages.errors import RequestError
from messages.ring.requests import Pooling, SamplingParams, Stamps, TokenizeMsg, Truncation
from tests.tokenizer_proc.parts import encoding_of
from tokenizer_proc.image_prompts import PromptText
from tokenizer_proc.joined_texts import JoinedTexts, Texts, join_texts
from tokenizer_proc.prompts import PromptReader

WORDS = ["[CLS]", "[SEP]", *"abcdefgh"]
SPECIAL = [("[CLS]", 0), ("[SEP]", 1)]
TEMPLATES = {
    "bert": ("[CLS] $A [SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"),
    "roberta": ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"),
    "qwen": ("$A [SEP]", "$A [SEP] $B [SEP]"),
    "none": ("$A", "$A $B"),
}


def make_tokenizer(template: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    single, pair = TEMPLATES[template]
    used = [token for token in SPECIAL if token[0] in pair]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
    return tokenizer


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("adds", [True, False])
def test_ids_are_those_of_the_library(template, side, adds):
    tokenizer, its = make_tokenizer(template), make_tokenizer(template)
    chooser = random.Random(3)
    for num_kept in (None, *range(4, 20)):
        first, second = (" ".join(chooser.choices(WORDS[2:], k=chooser.randrange(1, 12))) for _ in range(2))
        its.no_truncation()
        if num_kept is not None:
            its.enable_truncation(num_kept, strategy="longest_first", direction=side)
        for pair in (None, second):
            expected = its.encode(first, pair, add_special_tokens=adds)
            joined = join_texts(tokenizer, Texts(first, pair, adds, num_kept, side))
            assert joined.ids == expected.ids
            types = [int(0 < joined.second_start <= place) for place in range(len(joined.ids))]
            assert types == expected.type_ids


def test_less_room_than_special_tokens_leaves_these_alone():
    assert join_texts(make_tokenizer("bert"), Texts("a b c", "d", num_kept=2)) == JoinedTexts([0, 1, 1], 2)


def read(text: str, pair: str | None = None, truncation: Truncation | None = None, **pooling: object):
    """Returns the ids and the `Pooling` of what the scheduler gets from a reader with a context of 8 tokens."""
    tokenizer = make_tokenizer("bert")

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    encoding = dataclasses.replace(encoding_of(lambda text: []), to_ids=encode, join=partial(join_texts, tokenizer))
    params = SamplingParams(max_tokens=0, pooling=Pooling(**{"kind": "embed", **pooling}))
    message = TokenizeMsg(1, 0, text, b"", params, Stamps(), truncation=truncation, text_pair=pair)
    (user,) = PromptReader(encoding, vocab_size=10, max_model_len=8).read(message, PromptText(text), begun_ns=1)
    assert user.sampling_params.pooling is not None
    return unpack_int32(user.input_ids).tolist(), user.sampling_params.pooling


def test_a_text_may_fill_the_context_and_a_longer_one_is_refused_with_both_numbers_or_truncated():
    assert read("a b c d e f")[0] == [0, 2, 3, 4, 5, 6, 7, 1]
    with pytest.raises(RequestError, match=r"context length is 8 tokens, the request has 9") as raised:
        read("a b c d e f g")
    assert raised.value.info.too_long == (9, 8)
    assert read("a b c d e f g", truncation=Truncation(-1, "right"))[0] == [0, 2, 3, 4, 5, 6, 7, 1]
    assert read("a b c d e f g", truncation=Truncation(4, "left"))[0] == [0, 7, 8, 1]
    assert read("a b c", "d e f g h", truncation=Truncation(-1, "right"))[0] == [0, 2, 3, 1, 5, 6, 7, 1]


def test_the_scheduler_learns_where_the_second_text_starts():
    assert read("a b", "c")[1].second_start == 4
    assert read("a b")[1].second_start == 0


def test_labels_become_ids_of_one_token():
    pooling = read("a", kind="labels", label_ids=pack_int32([9]), label_texts=("b", "h"))[1]
    assert unpack_int32(pooling.label_ids).tolist() == [9, 3, 9]
    with pytest.raises(RequestError, match=r"label 'a b' has 2 tokens") as raised:
        read("a", kind="labels", label_texts=("a b",))
    assert raised.value.info.param == "labels"
    with pytest.raises(RequestError, match="outside the vocabulary"):
        read("a", kind="labels", label_ids=pack_int32([10]))
