import logging

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders

from detokenizer_proc.detokenizer import Detokenizer
from detokenizer_proc.vocabulary import Spelling, Vocabulary, vocabulary_of
from messages.columns import pack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import OpenStream, PrefilledRow, PromptReply, Usage
from messages.ring.requests import DropBefore, StopSeen
from messages.ring.uids import first_uid_of
from tests.detokenizer_proc.steps import Client, end, run, step
from tests.detokenizer_proc.test_decoders import real_vocabulary
from tests.detokenizer_proc.tiny_tokenizers import characters, llama, make_tokenizer
from tests.token_vectors import NAMES, read_vectors

CHARACTERS = characters()
END = CHARACTERS.token_to_id("<end>")
LLAMA = llama()


def ids_of(text: str) -> list[int]:
    return [CHARACTERS.token_to_id(char) for char in text]


@pytest.fixture
def detokenizer() -> Detokenizer:
    return Detokenizer(vocabulary_of(CHARACTERS, 64))


def test_text_comes_with_its_token(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0))
    client, stops = run(detokenizer, 7, ids_of("hello"))
    assert client.texts == list("hello")
    assert client.token_ids == ids_of("hello")
    assert stops == []
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason, client.final.error) == ("length", None, None)
    assert client.final.usage == Usage(3, 1, 5)
    assert client.final.stamps.finished_ns == 5
    assert client.final.stamps.detokenized_ns > 0
    assert detokenizer.gauges() == {"streams": 0, "ended_streams": 0}


def test_a_stop_string_ends_the_text_at_once_and_the_reply_later(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("lo", "x")))
    client, stops = run(detokenizer, 7, ids_of("hello world"), reason="stop")
    assert client.texts == ["h", "e", "", "l", "", ""]
    assert stops == [StopSeen(7, 0)]
    assert client.token_ids == ids_of("hello")
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "lo")
    assert client.final.usage == Usage(3, 1, 5)


def test_the_stream_of_a_stop_string_waits_for_its_row(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("a",)))
    detokenizer.handle_step(step([(7, 0, ids_of("a")[0])]))
    assert detokenizer.gauges() == {"streams": 1, "ended_streams": 1}
    replies, _ = detokenizer.handle_step(step([], end(7, 9, reason="abort")))
    assert [(final.finish_reason, final.usage.completion_tokens) for final in replies.finals] == [("stop", 1)]
    assert detokenizer.gauges() == {"streams": 0, "ended_streams": 0}


def test_a_stop_string_that_is_shown(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("lo",), include_stop_str_in_output=True))
    client, _ = run(detokenizer, 7, ids_of("hello world"))
    assert client.texts == ["h", "e", "l", "l", "o", ""]
    assert client.final is not None
    assert client.final.stop_reason == "lo"


def test_a_stop_string_in_the_last_token(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("lo",)))
    client, stops = run(detokenizer, 7, ids_of("hello"))
    assert client.text == "hel"
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "lo")
    assert client.final.usage.completion_tokens == 5
    assert stops == []


def test_a_stop_string_in_the_first_token(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("h",)))
    client, stops = run(detokenizer, 7, ids_of("he"))
    assert (client.text, client.token_ids, stops) == ("", ids_of("h"), [StopSeen(7, 0)])


@pytest.mark.parametrize(
    ("stop", "min_tokens", "text"),
    [
        ("h", 0, ""),
        ("h", 1, "he"),
        ("h", 2, "he"),
        ("h", 3, "hehe"),
        ("h", 5, "hehehi"),
        ("eheh", 4, "h"),
        ("eheh", 5, "hehehi"),
    ],
)
def test_a_stop_string_that_is_there_within_min_tokens_does_not_count(
    detokenizer: Detokenizer, stop: str, min_tokens: int, text: str
) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=(stop,), min_tokens=min_tokens))
    client, _ = run(detokenizer, 7, ids_of("hehehi"))
    assert client.text == text


@pytest.mark.parametrize("skip_special_tokens", [True, False])
@pytest.mark.parametrize("is_shown", [True, False])
def test_the_text_of_a_special_token_ends_the_answer_shown_or_not(
    detokenizer: Detokenizer, skip_special_tokens: bool, is_shown: bool
) -> None:
    opening = OpenStream(7, 0, ("lx", "<end>"), is_shown, skip_special_tokens)
    detokenizer.open_stream(opening)
    client, stops = run(detokenizer, 7, [*ids_of("hel"), END, *ids_of("o")], reason="length")
    assert client.text == ("hel<end>" if is_shown else "hel")
    assert (client.token_ids, stops) == ([*ids_of("hel"), END], [StopSeen(7, 0)])
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "<end>")
    detokenizer.open_stream(msgspec.structs.replace(opening, uid=8, min_tokens=4))
    client, _ = run(detokenizer, 8, [*ids_of("hel"), END, *ids_of("o")])
    assert client.text == ("helo" if skip_special_tokens else "hel<end>o")


def test_a_special_token_that_is_a_stop_string_comes_after_one_in_what_was_held_back() -> None:
    vocabulary = vocabulary_of(LLAMA, LLAMA.get_vocab_size())
    ids = [LLAMA.token_to_id(name) for name in ("b", "<0xC3>", "<0xA9>", "</s>")]
    for stop, text, found in ((("</s>",), "bé", "</s>"), (("é", "</s>"), "b", "é")):
        detokenizer = Detokenizer(vocabulary)
        detokenizer.open_stream(OpenStream(7, 0, stop))
        client, stops = run(detokenizer, 7, [*ids, ids[0]])
        assert (client.text, stops) == (text, [StopSeen(7, 0)])
        assert client.final is not None
        assert client.final.stop_reason == found


@pytest.mark.parametrize("split", range(5))
@pytest.mark.parametrize("num_prompt", range(3))
def test_a_stop_string_at_every_split(split: int, num_prompt: int) -> None:
    """The stop string `stop` is two tokens, cut at `split`, after other text. The prompt ends with its beginning."""
    tokens = ("st", "x", "stop"[:split] or "-", "stop"[split:] or "+", "y")
    tokenizer = make_tokenizer(tokens, decoders.Fuse())
    detokenizer = Detokenizer(vocabulary_of(tokenizer, 5))
    detokenizer.open_stream(OpenStream(7, 0, stop=("stop",), prompt_ids=pack_int32([1, 0][:num_prompt])))
    ids = [1, 2, 3, 4] if 0 < split < 4 else [1, 3 if split == 0 else 2, 4]
    client, stops = run(detokenizer, 7, [tokenizer.token_to_id(tokens[token_id]) for token_id in ids])
    assert client.text == "x"
    assert client.final is not None
    assert client.final.stop_reason == "stop"
    assert client.final.usage.completion_tokens == len(ids) - 1
    assert stops == [StopSeen(7, 0)]


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_stop_string_anywhere_in_real_tokens(name: str, data: st.DataObject) -> None:
    text, ids = data.draw(st.sampled_from([vector for vector in read_vectors(name) if len(vector[1]) > 1]))
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : data.draw(st.integers(start + 1, len(text)))]
    cut = data.draw(st.integers(0, len(ids) - 1))
    detokenizer = Detokenizer(real_vocabulary(name))
    (prompt,), _ = detokenizer.open_stream(OpenStream(7, 0, (stop,), prompt_ids=pack_int32(ids[:cut]), echo=True))
    assert isinstance(prompt, PromptReply)
    client, _ = run(detokenizer, 7, ids[cut:])
    output = text[len(prompt.text) :]
    assert client.text == output.partition(stop)[0]
    assert client.final is not None
    assert client.final.stop_reason == (stop if stop in output else None)


@pytest.mark.parametrize("reason", ["length", "abort", "timeout", "stop"])
def test_text_held_for_a_stop_string_comes_with_the_end(detokenizer: Detokenizer, reason: str) -> None:
    detokenizer.open_stream(OpenStream(7, 0, stop=("lost",)))
    client, _ = run(detokenizer, 7, ids_of("hellos"), reason=reason)
    assert client.texts == ["h", "e", "", "l", "", "los"]
    assert client.final is not None
    assert client.final.finish_reason == reason


def test_a_stop_string_in_what_was_held_back_as_bytes() -> None:
    detokenizer = Detokenizer(vocabulary_of(LLAMA, LLAMA.get_vocab_size()))
    detokenizer.open_stream(OpenStream(7, 0, stop=("é",)))
    ids = [LLAMA.token_to_id(token) for token in ("b", "<0xC3>", "<0xA9>")]
    client, _ = run(detokenizer, 7, ids)
    assert client.text == "b"
    assert client.final is not None
    assert (client.final.finish_reason, client.final.stop_reason) == ("stop", "é")
    assert client.final.usage.completion_tokens == 3


def test_the_token_that_ends_a_text_counts_but_is_not_shown(detokenizer: Detokenizer) -> None:
    for skip_special_tokens in (True, False):
        detokenizer.open_stream(OpenStream(7, 0, skip_special_tokens=skip_special_tokens))
        client, _ = run(detokenizer, 7, [*ids_of("hi"), END], reason="stop", ended_by_token=True)
        assert client.text == "hi"
        assert client.token_ids == [*ids_of("hi"), END]
        assert client.final is not None
        assert client.final.usage.completion_tokens == 3


@pytest.mark.parametrize(("stop_reason", "text"), [(ids_of("!")[0], "hi!"), (None, "hi")])
def test_a_stop_token_is_shown_where_stop_strings_are(
    detokenizer: Detokenizer, stop_reason: int | None, text: str
) -> None:
    detokenizer.open_stream(OpenStream(7, 0, include_stop_str_in_output=True))
    client, _ = run(detokenizer, 7, ids_of("hi!"), reason="stop", ended_by_token=True, stop_reason=stop_reason)
    assert client.text == text
    assert client.final is not None
    assert client.final.stop_reason == stop_reason


def test_special_tokens_are_shown_where_they_are_requested(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0, skip_special_tokens=False))
    detokenizer.open_stream(OpenStream(8, 0))
    assert run(detokenizer, 7, [END, *ids_of("a")])[0].text == "<end>a"
    assert run(detokenizer, 8, [END, *ids_of("a")])[0].text == "a"


def test_a_thought_that_the_prompt_has_opened_is_reported(detokenizer: Detokenizer) -> None:
    opening = OpenStream(7, 0, prompt_ids=pack_int32(ids_of("hello")), begins_in_thought=True)
    assert detokenizer.open_stream(opening) == ([PromptReply(7, 0, "", begins_in_thought=True)], [])
    client, _ = run(detokenizer, 7, ids_of("lo"))
    assert client.texts == ["l", "o"]
    echoed = msgspec.structs.replace(opening, uid=8, echo=True)
    assert detokenizer.open_stream(echoed)[0] == [
        PromptReply(8, 0, "hello", (), opening.prompt_ids, begins_in_thought=True)
    ]


def test_a_request_that_never_ran_ends_too(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0))
    error = ErrorInfo(500, "no")
    replies, _ = detokenizer.handle_step(step([], end(7, 0, reason="error", error=error)))
    assert replies.uids == b""
    (final,) = replies.finals
    assert (final.incremental_output, final.token_ids, final.error) == ("", b"", error)


def test_rows_of_one_step_keep_their_order_and_finals_are_apart(detokenizer: Detokenizer) -> None:
    for uid in (1, 2, 3):
        detokenizer.open_stream(OpenStream(uid, 0))
    a, b, c = ids_of("abc")
    replies, _ = detokenizer.handle_step(step([(3, 0, a), (1, 0, b), (2, 0, c)], end(1, 1), step_id=9))
    assert (replies.step_id, replies.texts) == (9, ("a", "c"))
    assert (replies.uids, replies.token_ids) == (step([(3, 0, a), (2, 0, c)]).uids, pack_int32([a, c]))
    assert [(final.uid, final.incremental_output) for final in replies.finals] == [(1, "b")]


def test_what_belongs_to_no_stream_is_dropped(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 2))
    (a,) = ids_of("a")
    rows = [(8, 0, a), (7, 1, a), (7, 3, a)]
    replies, stops = detokenizer.handle_step(step(rows, end(8, 1), end(7, 1, attempt=1)))
    assert (replies.uids, replies.texts, replies.finals, stops) == (b"", (), (), [])
    assert detokenizer.gauges()["streams"] == 1


def test_the_end_of_an_old_attempt_does_not_touch_the_new_one(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 1))
    replies, _ = detokenizer.handle_step(step([(7, 1, ids_of("a")[0])], end(7, 4, attempt=0)))
    assert (replies.texts, replies.finals) == (("a",), ())


def test_a_newer_attempt_replaces_an_older_one_and_never_the_other_way(detokenizer: Detokenizer) -> None:
    detokenizer.open_stream(OpenStream(7, 0))
    (a,) = ids_of("a")
    detokenizer.handle_step(step([(7, 0, a)]))
    detokenizer.open_stream(OpenStream(7, 1, output_ids=pack_int32([a]), num_chars_sent=1))
    detokenizer.open_stream(OpenStream(7, 0))
    replies, _ = detokenizer.handle_step(step([(7, 0, a), (7, 1, a)]))
    assert replies.attempts == pack_int32([1])
    assert detokenizer.gauges()["streams"] == 1


def test_a_continuation_that_had_ended_reports_it_at_once(detokenizer: Detokenizer) -> None:
    opening = OpenStream(7, 1, stop=("lo",), output_ids=pack_int32(ids_of("hello")), num_chars_sent=3)
    assert detokenizer.open_stream(opening) == ([], [StopSeen(7, 1)])
    client, stops = run(detokenizer, 7, ids_of("w"), attempt=1, num_before=5)
    assert (client.text, client.token_ids, stops) == ("", [], [])
    assert client.final is not None
    assert (client.final.stop_reason, client.final.usage.completion_tokens) == ("lo", 5)


def test_text_that_an_earlier_attempt_had_not_sent_comes_first(detokenizer: Detokenizer) -> None:
    hello = pack_int32(ids_of("hello"))
    detokenizer.open_stream(OpenStream(7, 1, output_ids=hello, num_chars_sent=2))
    assert run(detokenizer, 7, ids_of("w!"), attempt=1)[0].texts == ["llow", "!"]
    detokenizer.open_stream(OpenStream(8, 1, output_ids=hello, num_chars_sent=2))
    replies, _ = detokenizer.handle_step(step([], end(8, 5, attempt=1)))
    assert replies.finals[0].incremental_output == "llo"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_continued_request_is_the_undisturbed_one(data: st.DataObject) -> None:
    """For every place where the first attempt may die, even inside a character or a stop string."""
    vocabulary = vocabulary_of(LLAMA, LLAMA.get_vocab_size())
    names = ("▁a", "b", "▁c▁d", "é", "<0xC3>", "<0xA9>", "<s>", "▁")
    ids = data.draw(st.lists(st.sampled_from([LLAMA.token_to_id(name) for name in names]), min_size=2, max_size=12))
    stop = data.draw(st.sampled_from([(), ("b a", "dé"), ("éé", "d b"), ("<s>", "bé")]))
    is_shown = data.draw(st.booleans())
    some_id = st.sampled_from([LLAMA.token_to_id(name) for name in names])
    prompt_ids = pack_int32(data.draw(st.lists(some_id, max_size=3)))
    min_tokens = data.draw(st.integers(0, 4))
    opening = OpenStream(7, 0, stop, is_shown, prompt_ids=prompt_ids, min_tokens=min_tokens)
    detokenizer = Detokenizer(vocabulary)
    detokenizer.open_stream(opening)
    whole, _ = run(detokenizer, 7, ids)

    num_before = data.draw(st.integers(0, len(ids) - 1))
    detokenizer = Detokenizer(vocabulary)
    detokenizer.open_stream(opening)
    first = Client()
    for token_id in ids[:num_before]:
        first.take(detokenizer.handle_step(step([(7, 0, token_id)]))[0], 7)
    detokenizer = Detokenizer(vocabulary)
    sent = first.text
    output_ids = pack_int32(first.token_ids)
    detokenizer.open_stream(
        msgspec.structs.replace(opening, attempt=1, output_ids=output_ids, num_chars_sent=len(sent))
    )
    rest, _ = run(detokenizer, 7, ids[len(first.token_ids) :], attempt=1, num_before=len(first.token_ids))
    assert sent + rest.text == whole.text
    assert first.token_ids + rest.token_ids == whole.token_ids
    assert rest.final is not None
    assert whole.final is not None
    assert rest.final.usage == whole.final.usage
    assert (rest.final.finish_reason, rest.final.stop_reason) == (whole.final.finish_reason, whole.final.stop_reason)


class FailingDecoder:
    """Fails like a panic in the tokenizers library, which is not an `Exception`."""

    def push(self, token_id: int) -> str:
        if token_id == 13:
            raise BaseException("no")
        return "x"

    def finish(self) -> str:
        raise BaseException("no")

    def settle(self) -> str:
        return ""

    def num_held_before(self, token_id: int) -> int:
        return 0


def spell_nothing(token_id: int) -> Spelling:
    return "", b""


@pytest.mark.parametrize(("ids", "num_counted"), [([1, 13, 1, 1], 2), ([1, 13], 2), ([1, 1], 2)])
def test_a_stream_that_cannot_be_decoded_fails_alone(
    ids: list[int], num_counted: int, caplog: pytest.LogCaptureFixture
) -> None:
    detokenizer = Detokenizer(Vocabulary(lambda hidden: FailingDecoder(), frozenset(), spell_nothing))
    detokenizer.open_stream(OpenStream(7, 0))
    detokenizer.open_stream(OpenStream(8, 0))
    with caplog.at_level(logging.ERROR):
        client, stops = run(detokenizer, 7, ids)
    assert client.final is not None
    assert client.final.error is not None
    assert (client.final.finish_reason, client.final.error.status) == ("error", 500)
    assert client.final.usage.completion_tokens == num_counted
    (record,) = caplog.records
    assert client.final.error.message.split("reference ")[1].rstrip(")") in record.getMessage()
    assert record.exc_info is not None
    assert stops == ([StopSeen(7, 0)] if len(ids) > 2 else [])
    assert detokenizer.handle_step(step([(8, 0, 1)]))[0].texts == ("x",)


def test_a_continuation_that_cannot_be_decoded_fails_alone() -> None:
    detokenizer = Detokenizer(Vocabulary(lambda hidden: FailingDecoder(), frozenset(), spell_nothing))
    assert detokenizer.open_stream(OpenStream(7, 1, output_ids=pack_int32([1, 13]))) == ([], [StopSeen(7, 1)])
    replies, _ = detokenizer.handle_step(step([], end(7, 2, attempt=1)))
    assert replies.finals[0].finish_reason == "error"


def test_streams_of_the_frontends_that_live_are_kept(detokenizer: Detokenizer) -> None:
    for block in (1, 2, 3):
        detokenizer.open_stream(OpenStream(first_uid_of(block) + 1, 0))
    living = first_uid_of(1) + 1
    detokenizer.drop(DropBefore(first_uid_of(3), (1,)))
    assert detokenizer.gauges()["streams"] == 2
    replies, _ = detokenizer.handle_step(step([(living, 0, ids_of("a")[0])], end(first_uid_of(2) + 1, 0)))
    assert (replies.texts, replies.finals) == (("a",), ())


def test_streams_without_a_client_are_forgotten(detokenizer: Detokenizer) -> None:
    for uid in (7, 8, 9):
        detokenizer.open_stream(OpenStream(uid, 0))
    detokenizer.drop(DropBefore(9))
    assert detokenizer.gauges()["streams"] == 1
    replies, _ = detokenizer.handle_step(step([(7, 0, ids_of("a")[0]), (9, 0, ids_of("b")[0])], end(8, 0)))
    assert (replies.texts, replies.finals) == (("b",), ())


def test_what_a_prompt_took_continues_with_its_row(detokenizer: Detokenizer) -> None:
    for uid in (7, 8):
        detokenizer.open_stream(OpenStream(uid, 0))
    (letter,) = ids_of("a")
    rows = tuple(PrefilledRow(uid, 0, Usage(5, 1)) for uid in (7, 8, 9))
    message = step([(7, 0, letter), (8, 0, letter), (9, 0, letter)], end(8, 1))
    replies, _ = detokenizer.handle_step(msgspec.structs.replace(message, prefilled=rows))
    assert replies.prefilled == rows[:1], "8 has ended, 9 has no stream"
