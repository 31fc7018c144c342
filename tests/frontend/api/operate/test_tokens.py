"""`/tokenize` and `/detokenize` with a ring played by the test, also when a process dies."""

import json
from typing import Any

import pytest

from messages.columns import pack_int32, unpack_int32
from messages.errors import ErrorInfo
from messages.ring.replies import DecodeReply, EncodeReply
from messages.ring.requests import DecodeMsg, EncodeMsg
from tests.frontend.frontend_run import FrontendRun

USER = {"role": "user", "content": "a"}


def test_a_text_becomes_ids(server: FrontendRun):
    asked = server.ask("/tokenize", {"prompt": "Hello", "model": "m"})
    question = server.take(EncodeMsg)
    assert (question.prompt_text, question.chat, question.add_special_tokens) == ("Hello", None, True)
    assert not question.wants_token_strs
    server.send(EncodeReply(question.uid, pack_int32([5, 6])))
    assert asked.response().json() == {"count": 2, "max_model_len": 512, "tokens": [5, 6], "token_strs": None}


def test_a_conversation_becomes_ids_and_strings(server: FrontendRun):
    messages = [{"role": "user", "content": "Hi"}]
    asked = server.ask("/tokenize", {"messages": messages, "return_token_strs": True, "chat_template_kwargs": {"a": 1}})
    question = server.take(EncodeMsg)
    assert question.prompt_text is None
    assert question.chat is not None
    assert json.loads(question.chat.messages) == messages
    assert json.loads(question.chat.template_kwargs) == {"a": 1}
    assert (question.add_special_tokens, question.wants_token_strs) == (False, True)
    server.send(EncodeReply(question.uid, pack_int32([7]), ("Ġx",)))
    assert asked.response().json()["token_strs"] == ["Ġx"]


def test_tools_go_to_the_template(server: FrontendRun):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    body = {"messages": [USER], "tools": [tool], "chat_template_kwargs": {"a": 1, "tools": "old"}}
    for asked_for, expected in ((body, {"a": 1, "tools": [tool]}), ({"messages": [USER], "tools": []}, {})):
        asked = server.ask("/tokenize", asked_for)
        question = server.take(EncodeMsg)
        assert question.chat is not None
        assert json.loads(question.chat.template_kwargs) == expected
        server.send(EncodeReply(question.uid, pack_int32([5])))
        assert asked.response().json()["count"] == 1


def test_ids_become_a_text(server: FrontendRun):
    asked = server.ask("/detokenize", {"tokens": [1, 999]})
    question = server.take(DecodeMsg)
    assert unpack_int32(question.token_ids).tolist() == [1, 999]
    server.send(DecodeReply(question.uid, "aé"))
    assert asked.response().json() == {"prompt": "aé"}


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_refusal_of_the_tokenizer_is_the_reply(server: FrontendRun, path: str):
    asked = server.ask(path, {"prompt": "x", "tokens": [1]})
    info = ErrorInfo(400, "the template says no", param="messages")
    if path == "/tokenize":
        server.send(EncodeReply(server.take(EncodeMsg).uid, error=info))
    else:
        server.send(DecodeReply(server.take(DecodeMsg).uid, error=info))
    response = asked.response()
    assert (response.status_code, response.json()["error"]["message"]) == (400, info.message)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "", "content": "a"}]}, "messages"),
        ("/tokenize", {"prompt": "a", "return_token_str": True}, "return_token_str"),
        ("/tokenize", {"messages": [USER], "tools": {}}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": ["f"]}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": [{"type": "function"}]}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools"),
        ("/tokenize", {"messages": [USER], "tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ("/tokenize", {"prompt": "a", "chat_template": "{{ 1 }}"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1000]}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
    ],
)
def test_what_makes_no_sense_is_refused(server: FrontendRun, path: str, body: dict[str, Any], param: str):
    response = server.client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_another_model_does_not_exist(server: FrontendRun, path: str, body: dict[str, Any]):
    response = server.client.post(path, json={**body, "model": "zzz"})
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_question_that_a_process_took_with_it_is_asked_of_its_successor():
    with FrontendRun() as run:
        asked = run.ask("/tokenize", {"prompt": "Hello"})
        question = run.take(EncodeMsg)
        run.replace("tokenizer", 2)
        assert run.take(EncodeMsg) == question
        run.send(EncodeReply(question.uid, pack_int32([1])))
        run.send(EncodeReply(question.uid, pack_int32([2])))
        assert asked.response().json()["tokens"] == [1]
        assert run.gauge("calls") == 0
        run.round_trip()
