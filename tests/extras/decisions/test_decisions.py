"""`/v1/decisions`: the prompt of each question, the answers for logprobs of labels, refused bodies."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from extras.decisions.input_text import Item, Part, read_input
from messages.columns import pack_float32, pack_int32, unpack_int32
from messages.config.server import HttpConfig, SchedulingConfig
from messages.errors import ErrorInfo, RequestError
from messages.ring.replies import EncodeReply, PooledReply, Usage
from messages.ring.requests import EncodeMsg, TokenizeMsg
from runtime.chat_files import PLAIN_TEMPLATE, ChatFiles
from tests.frontend.frontend_run import FrontendRun, final, make_config
from tokenizer_proc.chat import ChatTemplates

TEMPLATES = ChatTemplates(ChatFiles({"default": PLAIN_TEMPLATE}, {}))

PREDICATE = {"type": "predicate", "name": "refund", "instructions": "The customer asks for a refund."}
CHOICE = {
    "type": "choice",
    "instructions": "The topic of the message.",
    "choices": [{"value": "true"}, {"value": True, "description": "It is true."}, {"value": "other"}],
}
SCORE = {
    "type": "score",
    "name": "anger",
    "instructions": [{"type": "input_text", "text": "How angry?"}],
    "levels": [{"label": "calm"}, {"label": "angry", "description": "uses strong words"}, {"label": "furious"}],
}
MANY = {"type": "choice", "instructions": "Y?", "choices": [{"value": str(i)} for i in range(27)]}


def encode(server: FrontendRun) -> str:
    """Plays the tokenizer for one question: ids are the text's last 230 characters. Returns the text."""
    message = server.take(EncodeMsg)
    text = TEMPLATES.render(message.chat) if message.chat is not None else message.prompt_text or ""
    assert not message.add_special_tokens
    server.send(EncodeReply(message.uid, pack_int32(map(ord, text[-230:])), text=text if message.wants_text else ""))
    return text


def decide(
    server: FrontendRun, body: dict[str, Any], results: Sequence[Sequence[float]]
) -> tuple[Any, list[TokenizeMsg], list[str]]:
    """Returns the reply, its requests and their prompts, if labels have these probabilities (not normalized)."""
    asked = server.ask("/v1/decisions", body)
    for _ in range(2 + len(results)):  # the chat, what is before the question, and each question
        encode(server)
    messages = [server.take_request() for _ in results]
    for index, (message, values) in enumerate(zip(messages, results, strict=True)):
        server.send(PooledReply(message.uid, message.attempt, pack_float32(map(math.log, values))))
        length = len(unpack_int32(message.prompt_ids))
        server.send(final(message, usage=Usage(length, 16 if index == 0 else 32, 0)))
    response = asked.response()
    assert response.status_code == 200, response.text
    prompts = ["".join(map(chr, unpack_int32(message.prompt_ids))) for message in messages]
    return response.json(), messages, prompts


def test_each_kind_of_question(server: FrontendRun):
    body = {"input": "I want my money back!", "questions": [PREDICATE, CHOICE, SCORE], "model": "m"}
    reply, messages, prompts = decide(server, body, [[0.03, 0.01], [0.1, 0.3, 0.1], [0.1, 0.2, 0.1]])
    predicate, choice, score = reply["answers"]
    assert predicate == {"type": "predicate", "name": "refund", "probability": pytest.approx(0.75)}
    assert choice == {
        "type": "choice",
        "name": None,
        "choice": True,
        "confidence": pytest.approx(0.4),
        "probabilities": [
            {"value": "true", "probability": pytest.approx(0.2)},
            {"value": True, "probability": pytest.approx(0.6)},
            {"value": "other", "probability": pytest.approx(0.2)},
        ],
    }
    assert score == {
        "type": "score",
        "name": "anger",
        "score": pytest.approx(1.0),
        "confidence": pytest.approx(0.25),
        "probabilities": [
            {"label": "calm", "value": 0, "probability": pytest.approx(0.25)},
            {"label": "angry", "value": 1, "probability": pytest.approx(0.5)},
            {"label": "furious", "value": 2, "probability": pytest.approx(0.25)},
        ],
    }
    for answer in (choice, score):
        assert math.fsum(each["probability"] for each in answer["probabilities"]) == pytest.approx(1, abs=1e-12)
    labels = [message.sampling_params.pooling.label_texts for message in messages]  # pyright: ignore
    assert labels == [("Yes", "No"), ("A", "B", "C"), ("A", "B", "C")]
    shared = prompts[0][: prompts[0].index("Question: ")]
    assert all(prompt.startswith(shared) for prompt in prompts)
    assert shared.endswith("user: Input:\nI want my money back!\n\n")
    assert prompts[0].removeprefix(shared) == (
        "Question: Is this true of the input? The customer asks for a refund.\n\nAnswer Yes or No.\nassistant:"
    )
    assert prompts[2].removeprefix(shared) == (
        "Question: How angry?\n\nWhich of these levels, lowest first, fits best?\nA. calm\n"
        "B. angry: uses strong words\nC. furious\n\nAnswer with its label, from A to C.\nassistant:"
    )
    num_tails = sum(len(prompt) - len(shared) for prompt in prompts)
    assert reply["model"] == "m"
    assert reply["usage"] == {
        "input_tokens": len(shared) + num_tails,
        "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": len(shared) + num_tails - 16},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": len(shared) + num_tails,
    }


def test_more_options_than_letters_have_labels_of_two_tokens(server: FrontendRun):
    letters, of_a, of_b, of_c = [0.2, 0.1, 0.1], [1.0] * 10, [3.0, *[1.0] * 9], [1.0] * 7
    reply, messages, prompts = decide(server, {"input": "x", "questions": [MANY]}, [letters, of_a, of_b, of_c])
    probabilities = [each["probability"] for each in reply["answers"][0]["probabilities"]]
    expected = [*[0.05] * 10, 0.0625, *[0.25 / 12] * 9, *[0.25 / 7] * 7]
    assert probabilities == pytest.approx(expected)
    assert reply["answers"][0]["choice"] == "10"
    assert [prompt[-20:] for prompt in prompts[1:]] == [prompts[0][-19:] + letter for letter in "ABC"]
    assert [message.sampling_params.pooling.label_texts for message in messages] == [  # pyright: ignore
        ("A", "B", "C"),
        *[tuple("0123456789")] * 2,
        tuple("0123456"),
    ]
    assert "\nB0. 10\n" in prompts[0]
    assert "from A0 to C6." in prompts[0]


def test_the_key_of_the_cache_separates_callers(server: FrontendRun):
    body = {"input": "x", "questions": [PREDICATE], "prompt_cache_key": "tenant", "safety_identifier": "s"}
    body["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m"}
    _, (message,), _ = decide(server, body, [[1, 1]])
    assert message.sampling_params.cache_salt == "tenant"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "questions": []}, "questions"),
        ({"input": "x", "questions": [PREDICATE] * 401}, "questions"),
        ({"input": "", "questions": [PREDICATE]}, "input"),
        ({"input": [], "questions": [PREDICATE]}, "input"),
        ({"questions": [PREDICATE]}, "input"),
        ({"input": "x", "questions": [{"type": "rank", "instructions": "y"}]}, "questions"),
        ({"input": "x", "questions": [{**PREDICATE, "instructions": ""}]}, "questions"),
        ({"input": "x", "questions": [{**CHOICE, "choices": [{"value": "a"}]}]}, "questions"),
        ({"input": "x", "questions": [{**CHOICE, "choices": [{"value": "a"}, {"value": "a"}]}]}, "questions"),
        ({"input": "x", "questions": [{**CHOICE, "choices": [{"value": str(i)} for i in range(256)]}]}, "questions"),
        ({"input": "x", "questions": [{**SCORE, "levels": []}]}, "questions"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}], "questions": [PREDICATE]}, "input"),
    ],
)
def test_refused_bodies(server: FrontendRun, body: Any, param: str):
    response = server.client.post("/v1/decisions", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not server.arrived()


def test_more_prompts_than_may_be_open_are_refused_before_any_is_encoded():
    config = make_config(scheduling=SchedulingConfig(max_num_seqs=1, max_queued_requests=1))
    with FrontendRun(config) as run:
        response = run.client.post("/v1/decisions", json={"input": "x", "questions": [MANY]})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["message"].startswith("4 texts are requested together, and at most 2 may be open")
        assert error["param"] == "questions"
        assert not run.arrived()


@pytest.mark.parametrize(("num_before", "param"), [(0, "input"), (2, "questions[0]")])
def test_what_is_too_long_is_named(server: FrontendRun, num_before: int, param: str):
    asked = server.ask("/v1/decisions", {"input": "x", "questions": [PREDICATE]})
    for _ in range(num_before):  # the chat, and what is before the question
        encode(server)
    error = ErrorInfo(400, "too long", param="prompt", code="context_length_exceeded")
    server.send(EncodeReply(server.take(EncodeMsg).uid, error=error))
    response = asked.response()
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_a_conversation_is_one_text():
    provided = [
        Item(role="developer", content="Judge the last reply."),
        Item(role="user", content=[Part("input_text", text="Weather?"), Part("input_json", data={"city": ["Bonn"]})]),
        Item(type="function_call", call_id="1", name="look_up", arguments='{"a":1}'),
        Item(type="function_call_output", call_id="1", output=[Part("input_text", text="rain")]),
        Item(role="assistant", content=[Part("output_text", text="It rains.")]),
    ]
    read = read_input(provided)
    assert read.instructions == "Judge the last reply."
    assert read.text == (
        '[user]\nWeather?\n{"city":["Bonn"]}\n\n[call of look_up]\n{"a":1}\n\n[result of look_up]\nrain\n\n'
        "[assistant]\nIt rains."
    )
    assert read_input([Item(role="user", content="only")]).text == "only"


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([Item(role="system", content="x")], "instructions only"),
        ([Item(role="tool", content="x")], "role must be one of"),
        ([Item(role="user")], "content is required"),
        ([Item(type="reasoning")], "type 'reasoning' is not supported"),
        ([Item(type="function_call_output", call_id="1", output="x")], "no call before it"),
        ([Item(role="user", content=[Part("input_image")])], "reads text only"),
        ([Item(role="user", content=[Part("input_text")])], "lacks its content"),
    ],
)
def test_refused_items(items: list[Item], expected: str):
    with pytest.raises(RequestError, match=expected):
        read_input(items)


def test_a_head_beyond_the_context_is_refused_before_any_question_is_encoded(server: FrontendRun):
    asked = server.ask("/v1/decisions", {"input": "x", "questions": [PREDICATE] * 300})
    encode(server)
    message = server.take(EncodeMsg)
    server.send(EncodeReply(message.uid, pack_int32([1] * server.config.facts.max_model_len), text=""))
    response = asked.response()
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert response.json()["error"]["param"] == "input"


def test_texts_of_questions_are_bounded_over_all_their_rows():
    options = [{"value": f"{index} {'x' * 700}"} for index in range(255)]
    question = {"type": "choice", "instructions": "Which?", "choices": options}
    with FrontendRun(make_config(HttpConfig(port=0))) as run:
        response = run.client.post("/v1/decisions", json={"input": "x", "questions": [question]})
        assert response.status_code == 400
        assert "and may have" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "questions"
        assert not run.arrived()
