"""Logprobs on their way to the client, and the prompt's text."""

import logging
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import vocabulary_of
from frontend.api.answers.logprob_fields import prompt_logprobs
from messages.columns import pack_int32, unpack_int32
from messages.ring.replies import CacheFlushed, DetokenizeMsg, OpenStream, PromptReply, StepReplies, TokenLogprob
from messages.ring.requests import StopSeen
from scheduler_proc.deciding.sampling.logprob_columns import without_logprobs
from tests.detokenizer_proc.logprob_runs import (
    columns,
    deliver_prompt,
    prompt_logprobs_of,
    run_with_logprobs,
    step_with_logprob,
)
from tests.detokenizer_proc.steps import end, step
from tests.detokenizer_proc.test_decoders import (
    OTHER_TOKENIZERS,
    PIECE_TOKENIZERS,
    REAL,
    real_tokenizer,
    real_vocabulary,
)
from tests.detokenizer_proc.tiny_tokenizers import characters, llama
from tests.token_vectors import NAMES, read_vectors

CHARACTERS = characters()
LLAMA = llama()


def ids_of(text: str) -> list[int]:
    return [CHARACTERS.token_to_id(char) for char in text]


def llama_ids(*tokens: str) -> list[int]:
    return [LLAMA.token_to_id(token) for token in tokens]


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(vocabulary_of(CHARACTERS, 64))


@pytest.fixture
def llama_detokenizer() -> Detokenizer:
    return Detokenizer(vocabulary_of(LLAMA, LLAMA.get_vocab_size()))


def test_a_token_comes_with_its_alternatives(detokenizer: Detokenizer) -> None:
    detokenizer.handle(OpenStream(7, 0, num_logprobs=2))
    a, b, c = ids_of("abc")
    top = [(b, -0.25), (a, -0.5), (c, -2.0)]
    (replies,), _ = detokenizer.handle(step_with_logprob(7, a, top))
    assert isinstance(replies, StepReplies)
    (positions,) = replies.logprobs
    assert positions.token == TokenLogprob(a, "a", b"a", -0.5)
    assert positions.top == (TokenLogprob(b, "b", b"b", -0.25), TokenLogprob(a, "a", b"a", -0.5)), "as many as it wants"
    assert positions.text_offset == 0


def test_only_the_rows_that_want_logprobs_have_them(detokenizer: Detokenizer) -> None:
    a, b, c, d = ids_of("abcd")
    for uid, num_logprobs in ((1, None), (2, 0), (3, None), (4, 1), (5, 0)):
        detokenizer.handle(OpenStream(uid, 0, num_logprobs=num_logprobs))
    plain = step([(1, 0, a), (2, 0, b), (3, 0, c), (4, 0, d), (5, 0, a), (9, 0, a)], end(4, 1))
    logprobs = columns([(token_id, -float(token_id), [(c, -0.1)]) for token_id in (b, d, a, a)])
    entries = pack_int32([1, 3, 4, 5])
    message = DetokenizeMsg(0, plain.uids, plain.attempts, plain.token_ids, plain.finished, entries, logprobs)
    (replies,), stops = detokenizer.handle(message)
    assert isinstance(replies, StepReplies)
    assert stops == []
    assert replies.texts == ("a", "b", "c", "a")
    assert list(unpack_int32(replies.logprob_entries)) == [1, 3]
    assert [positions.token.token_id for positions in replies.logprobs] == [b, a]
    assert [len(positions.top) for positions in replies.logprobs] == [0, 0]
    (final,) = replies.finals
    assert [positions.token for positions in final.logprobs] == [TokenLogprob(d, "d", b"d", -float(d))]
    assert final.logprobs[0].top == (TokenLogprob(c, "c", b"c", pytest.approx(-0.1)),)


def test_the_end_without_a_token_has_no_logprobs(detokenizer: Detokenizer) -> None:
    detokenizer.handle(OpenStream(7, 0, num_logprobs=0))
    (replies,), _ = detokenizer.handle(step([], end(7, 0, reason="abort")))
    assert isinstance(replies, StepReplies)
    assert replies.finals[0].logprobs == ()


def test_held_stop_strings_do_not_move_the_places(detokenizer: Detokenizer) -> None:
    opening = OpenStream(7, 0, stop=("lost", "x"), num_logprobs=0)
    client, positions = run_with_logprobs(detokenizer, opening, ids_of("hellosx"))
    assert client.text == "hellos"
    assert [token.text_offset for token in positions] == list(range(7))
    assert len(positions) == len(client.token_ids)


def test_a_continuation_counts_places_over_the_whole_request(detokenizer: Detokenizer) -> None:
    opening = OpenStream(7, 0, output_ids=pack_int32(ids_of("hel")), num_chars_sent=3, num_logprobs=0)
    _, positions = run_with_logprobs(detokenizer, opening, ids_of("lo"))
    assert [token.text_offset for token in positions] == [3, 4]


def test_places_of_characters_of_several_tokens(llama_detokenizer: Detokenizer) -> None:
    """é is two tokens, followed by an incomplete character."""
    ids = llama_ids("▁a", "<0xC3>", "<0xA9>", "<0xC3>", "<0xA9>", "b", "<s>", "<0xC3>", "b")
    _, positions = run_with_logprobs(llama_detokenizer, OpenStream(7, 0, num_logprobs=0), ids)
    assert [token.text_offset for token in positions] == [0, 1, 1, 2, 2, 3, 4, 4, 5]
    assert [token.token.utf8 for token in positions[:4]] == [b" a", b"\xc3", b"\xa9", b"\xc3"]
    assert [token.token.text for token in positions[:3]] == [" a", "\ufffd", "\ufffd"]
    assert positions[6].token.text == "<s>", "a special token has its text, shown or not"


def test_output_follows_the_prompt(llama_detokenizer: Detokenizer) -> None:
    prompt = llama_ids("<s>", "▁a", "b")
    for prompt_ids, text in ((b"", "ab a"), (pack_int32(prompt), " ab a"), (pack_int32(prompt[:1]), "ab a")):
        opening = OpenStream(7, 0, prompt_ids=prompt_ids, num_logprobs=0)
        client, positions = run_with_logprobs(llama_detokenizer, opening, llama_ids("▁a", "b", "▁a"))
        assert client.text == text
        assert positions[0].text_offset == 0
        assert positions[1].text_offset == len(text) - 3


def test_a_character_that_the_prompt_began(llama_detokenizer: Detokenizer) -> None:
    prompt = llama_ids("▁a", "<0xC3>", "<0xA9>", "<0xC3>")
    opening = OpenStream(7, 0, prompt_ids=pack_int32(prompt), echo=True, num_logprobs=0)
    replies, _ = llama_detokenizer.handle(opening)
    assert replies == [PromptReply(7, 0, "aé", token_ids=pack_int32(prompt))]
    client, positions = run_with_logprobs(llama_detokenizer, opening, llama_ids("<0xA9>", "b"))
    assert client.text == "éb", "the prompt's own whole characters are not shown again"
    assert [token.text_offset for token in positions] == [0, 1]


def test_an_echo_without_output(detokenizer: Detokenizer) -> None:
    prompt_ids = pack_int32(ids_of("hello"))
    replies, stops = detokenizer.handle(OpenStream(7, 0, prompt_ids=prompt_ids, echo=True))
    assert (replies, stops) == ([PromptReply(7, 0, "hello", token_ids=prompt_ids)], [])
    (step_replies,), _ = detokenizer.handle(step([], end(7, 0)))
    assert isinstance(step_replies, StepReplies)
    assert step_replies.finals[0].incremental_output == ""


def test_a_prompt_is_notified_once_its_logprobs_are_there(detokenizer: Detokenizer) -> None:
    reply = deliver_prompt(detokenizer, ids_of("hey"))
    assert (reply.text, reply.token_ids) == ("hey", pack_int32(ids_of("hey")))
    assert [token.token.logprob for token in reply.tokens] == [None, -0.25, -0.5]
    assert [token.token.text for token in reply.tokens] == list("hey")
    assert [token.text_offset for token in reply.tokens] == [0, 1, 2]
    assert [len(token.top) for token in reply.tokens] == [0, 1, 1]
    assert detokenizer.handle(prompt_logprobs_of(ids_of("hey"))) == ([], []), "once"


def test_positions_of_a_span_have_no_logprob_and_no_alternatives(detokenizer: Detokenizer) -> None:
    ids = ids_of("hello")
    detokenizer.handle(OpenStream(7, 0, prompt_ids=pack_int32(ids), num_prompt_logprobs=1))
    message = prompt_logprobs_of(ids)
    hidden = msgspec.structs.replace(message, logprobs=without_logprobs(message.logprobs, [range(1, 3)]))
    (reply,), _ = detokenizer.handle(hidden)
    assert isinstance(reply, PromptReply)
    assert reply.text == "hello"
    assert [token.token.logprob for token in reply.tokens] == [None, -0.25, None, None, -1.0]
    assert [len(token.top) for token in reply.tokens] == [0, 1, 0, 0, 1]
    assert [token.text_offset for token in reply.tokens] == [0, 1, 2, 3, 4]
    assert [entry is None for entry in prompt_logprobs(reply)] == [True, False, True, True, False]


def test_a_prompt_of_one_token(detokenizer: Detokenizer) -> None:
    reply = deliver_prompt(detokenizer, ids_of("h"))
    assert [(token.token.text, token.token.logprob) for token in reply.tokens] == [("h", None)]


def test_logprobs_of_an_older_attempt_or_of_no_one_are_dropped(detokenizer: Detokenizer) -> None:
    ids = ids_of("hey")
    detokenizer.handle(OpenStream(7, 1, prompt_ids=pack_int32(ids), num_prompt_logprobs=1))
    assert detokenizer.handle(prompt_logprobs_of(ids)) == ([], [])
    assert detokenizer.handle(prompt_logprobs_of(ids, uid=8)) == ([], [])


def test_logprobs_that_do_not_fit_fail_alone(detokenizer: Detokenizer, caplog: pytest.LogCaptureFixture) -> None:
    detokenizer.handle(OpenStream(7, 0, prompt_ids=pack_int32(ids_of("hey")), num_prompt_logprobs=1))
    detokenizer.handle(OpenStream(8, 0, num_logprobs=0))
    with caplog.at_level(logging.ERROR):
        assert detokenizer.handle(prompt_logprobs_of(ids_of("hello"))) == ([], [StopSeen(7, 0)])
        assert detokenizer.handle(step_with_logprob(8, 1000))[1] == [StopSeen(8, 0)]
    (replies,), _ = detokenizer.handle(step([], end(7, 0), end(8, 1)))
    assert isinstance(replies, StepReplies)
    assert [final.finish_reason for final in replies.finals] == ["error", "error"]
    assert len(caplog.records) == 2


def test_the_end_of_a_flush_passes_through(detokenizer: Detokenizer) -> None:
    assert detokenizer.handle(CacheFlushed(3, 5)) == ([CacheFlushed(3, 5)], [])


def test_leading_spaces_are_kept_but_at_the_beginning_of_a_prompt(llama_detokenizer: Detokenizer) -> None:
    reply = deliver_prompt(llama_detokenizer, llama_ids("▁a", "▁a"))
    assert reply.text == "a a"
    assert [token.token.text for token in reply.tokens] == ["a", " a"]
    assert [token.text_offset for token in reply.tokens] == [0, 1]


def test_spaces_that_the_decoder_puts_between_words() -> None:
    tokenizer = OTHER_TOKENIZERS["WordPiece"]
    vocabulary = vocabulary_of(tokenizer, tokenizer.get_vocab_size() + 1)
    assert [vocabulary.spell(token_id)[0] for token_id in range(3)] == [" a", "b", " c"]
    assert vocabulary.spell(tokenizer.get_vocab_size()) == ("", b"")


def check_places(text: str, prompt: PromptReply) -> None:
    """Offsets are correct: the text between two of them is what the earlier token adds in complete characters."""
    offsets = [token.text_offset for token in prompt.tokens] + [len(text)]
    assert offsets == sorted(offsets)
    for token, (start, stop) in zip(prompt.tokens, pairwise(offsets), strict=True):
        if "\ufffd" not in token.token.text:
            assert token.token.text == text[start:stop]


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_vectors_with_their_places_and_bytes(name: str) -> None:
    detokenizer = Detokenizer(real_vocabulary(name))
    for text, ids in read_vectors(name):
        if ids:
            prompt = deliver_prompt(detokenizer, ids)
            detokenizer.handle(step([], end(7, 0)))
            assert prompt.text == text
            assert b"".join(token.token.utf8 for token in prompt.tokens).decode() == text
            check_places(text, prompt)


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_bytes_of_any_ids_are_those_of_the_text(name: str, data: st.DataObject) -> None:
    """With special tokens shown, and except for broken characters, where the decoders differ in U+FFFD."""
    tokenizer, size = real_tokenizer(name), real_tokenizer(name).get_vocab_size()
    any_id = st.integers(0, size - 1) | st.integers(0, min(size, 260) - 1)
    ids = data.draw(st.lists(any_id, min_size=1, max_size=16))
    detokenizer = Detokenizer(real_vocabulary(name))
    opening = OpenStream(7, 0, skip_special_tokens=False, prompt_ids=pack_int32(ids), num_prompt_logprobs=0)
    detokenizer.handle(opening)
    (reply,), _ = detokenizer.handle(prompt_logprobs_of(ids))
    assert isinstance(reply, PromptReply)
    (replies,), _ = detokenizer.handle(step([], end(7, 0)))
    assert isinstance(replies, StepReplies)
    text = reply.text + replies.finals[0].incremental_output
    assert text == tokenizer.decode(ids, skip_special_tokens=False)
    joined = b"".join(token.token.utf8 for token in reply.tokens).decode(errors="replace")
    assert joined.replace("\ufffd", "") == text.replace("\ufffd", "")
    offsets = [token.text_offset for token in reply.tokens]
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)
    assert [token.token.token_id for token in reply.tokens] == ids


@pytest.mark.parametrize("name", PIECE_TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_prompt_and_output_joined_are_the_decoding_of_both(name: str, data: st.DataObject) -> None:
    """Except for broken characters: the valid part of an invalid run of bytes has already been shown."""
    tokenizer = PIECE_TOKENIZERS[name]
    some_id = st.integers(0, tokenizer.get_vocab_size() - 1) | st.integers(0, min(10, tokenizer.get_vocab_size()) - 1)
    prompt = data.draw(st.lists(some_id, min_size=1, max_size=6))
    output = data.draw(st.lists(some_id, min_size=1, max_size=6))
    detokenizer = Detokenizer(vocabulary_of(tokenizer, tokenizer.get_vocab_size()))
    opening = OpenStream(7, 0, prompt_ids=pack_int32(prompt), echo=True)
    (reply,), _ = detokenizer.handle(opening)
    assert isinstance(reply, PromptReply)
    detokenizer.handle(step([], end(7, 0)))
    client, _ = run_with_logprobs(detokenizer, opening, output)
    whole = tokenizer.decode(prompt + output)
    if "\ufffd" not in whole:
        assert reply.text + client.text == whole


@pytest.mark.shared
@pytest.mark.parametrize("name", REAL[:2])
@settings(max_examples=40, deadline=None)
@given(text=st.text(min_size=1, max_size=8), data=st.data())
def test_a_text_cut_anywhere_into_prompt_and_output(name: str, text: str, data: st.DataObject) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids) - 1))
    detokenizer = Detokenizer(real_vocabulary(name))
    opening = OpenStream(7, 0, prompt_ids=pack_int32(ids[:cut]), echo=True)
    (reply,), _ = detokenizer.handle(opening)
    assert isinstance(reply, PromptReply)
    detokenizer.handle(step([], end(7, 0)))
    client, _ = run_with_logprobs(detokenizer, opening, ids[cut:])
    assert reply.text + client.text == tokenizer.decode(ids)
