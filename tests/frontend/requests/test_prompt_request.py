from frontend.requests.prompt_request import PromptRequest, nth_seed
from messages.columns import unpack_int32
from messages.ring.requests import ChatPrompt, SamplingParams


def test_choices_differ_in_their_seeds_alone():
    messages = list(PromptRequest("hi", SamplingParams(8, seed=2**63 - 1), num_choices=3).messages(received_ns=5))
    assert [message.sampling_params.seed for message in messages] == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert {(message.prompt_text, message.prompt_ids, message.chat) for message in messages} == {("hi", b"", None)}
    assert {message.sampling_params.max_tokens for message in messages} == {8}
    assert {message.stamps.received_ns for message in messages} == {5}


def test_a_prompt_is_one_of_three_things():
    (by_ids,) = PromptRequest([5, 6], SamplingParams(8)).messages(1)
    assert (by_ids.prompt_text, unpack_int32(by_ids.prompt_ids).tolist(), by_ids.chat) == (None, [5, 6], None)
    chat = ChatPrompt(b"[]")
    (talk,) = PromptRequest(chat, SamplingParams(8), add_special_tokens=False).messages(1)
    assert (talk.prompt_text, talk.prompt_ids, talk.chat, talk.add_special_tokens) == (None, b"", chat, False)


def test_seeds_of_choices_follow_each_other_and_wrap():
    assert [nth_seed(5, index) for index in range(3)] == [5, 6, 7]
    assert nth_seed(2**63 - 1, 1) == -(2**63)
    assert nth_seed(-1, 1) == 0
