"""The `openai` client with a real server of the bundled model: everything must work as with OpenAI."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.ring.client import BARD, BARD_DIR, RingClient

pytestmark = pytest.mark.ring

PROMPT = "ROMEO:\nBut soft, what light through yonder window breaks? It is the east, and"
TIMEOUT_S = 60.0
MAX_TRIES = 5

Start = Callable[..., RingClient]


@pytest.fixture(scope="module")
def ring(bard_ring: RingClient) -> RingClient:
    return bard_ring


@pytest.fixture
def client(ring: RingClient) -> Iterator[OpenAI]:
    with connect(ring) as client:
        yield client


def connect(ring: RingClient, api_key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{ring.url}/v1", api_key=api_key, max_retries=0, timeout=TIMEOUT_S)


def complete(client: OpenAI, **params: Any) -> Completion:
    """Returns the completion of `PROMPT`, greedy unless `params` specify otherwise."""
    return client.completions.create(**{"model": BARD, "prompt": PROMPT, "temperature": 0.0, **params})


def usage_of(reply: Completion | ChatCompletion) -> CompletionUsage:
    assert reply.usage is not None
    return reply.usage


def cached_tokens(reply: Completion) -> int:
    details = usage_of(reply).prompt_tokens_details
    assert details is not None
    assert details.cached_tokens is not None
    return details.cached_tokens


def test_a_completion_is_what_the_native_endpoint_gives(client: OpenAI, ring: RingClient):
    native = ring.generate(PROMPT, max_tokens=12)
    reply = complete(client, max_tokens=12)
    assert (reply.object, reply.model, reply.id[:5]) == ("text_completion", BARD, "cmpl-")
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (native.text, "length")
    usage = usage_of(reply)
    assert usage.prompt_tokens == native.usage["prompt_tokens"]
    assert (usage.completion_tokens, usage.total_tokens) == (12, usage.prompt_tokens + 12)
    assert reply.choices[0].logprobs is None


def test_a_stream_is_the_completion(client: OpenAI):
    whole = complete(client, max_tokens=20)
    chunks = list(complete(client, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    last = chunks[-1]
    assert (last.choices, last.usage.total_tokens) == ([], usage_of(whole).total_tokens)
    assert {chunk.id for chunk in chunks} == {last.id}


@pytest.mark.parametrize("is_chat", [False, True])
def test_every_chunk_reports_the_usage_up_to_itself(client: OpenAI, is_chat: bool):
    text = f"The {'second' if is_chat else 'first'} scene, in which nobody speaks.\n" * 4
    options: dict[str, Any] = {"include_usage": True, "continuous_usage_stats": True}
    params: dict[str, Any] = {"model": BARD, "max_tokens": 8, "stream": True, "stream_options": options}
    cached: list[int] = []
    for _ in range(2):
        if is_chat:
            stream = client.chat.completions.create(messages=[{"role": "user", "content": text}], **params)
        else:
            stream = client.completions.create(prompt=text, **params)
        usages = [chunk.usage.model_dump() for chunk in stream]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert (counts[0] == 0) == is_chat
        assert len({(usage["prompt_tokens"], *usage["prompt_tokens_details"].values()) for usage in usages}) == 1
        assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
        cached.append(usages[0]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] < cached[1]


def test_a_long_prompt_may_be_cut(client: OpenAI, ring: RingClient):
    text = PROMPT + " Juliet is the sun." * 400
    with pytest.raises(openai.BadRequestError):
        complete(client, prompt=text)
    for side, num_tokens, kept in (("left", 20, 20), ("right", 20, 20), ("left", -1, 1016)):
        cut = {"truncate_prompt_tokens": num_tokens, "truncation_side": side, "return_token_ids": True}
        reply = complete(client, prompt=text, max_tokens=8, extra_body=cut)
        assert usage_of(reply).prompt_tokens == kept
        ids = reply.choices[0].model_dump()["prompt_token_ids"]
        all_ids = httpx.post(f"{ring.url}/tokenize", json={"prompt": text}, timeout=TIMEOUT_S).json()["tokens"]
        assert ids == (all_ids[-kept:] if side == "left" else all_ids[:kept])


def test_choices_and_prompts_at_once_are_those_that_come_alone(client: OpenAI):
    prompts = [PROMPT, "JULIET:\nO Romeo, Romeo, wherefore art thou"]
    sampled = {"max_tokens": 8, "temperature": 1.0}
    reply = complete(client, prompt=prompts, n=3, seed=11, **sampled)
    alone = [
        complete(client, prompt=prompt, seed=11 + index, **sampled).choices[0].text
        for prompt in prompts
        for index in range(3)
    ]
    assert [choice.text for choice in reply.choices] == alone
    assert [choice.index for choice in reply.choices] == list(range(6))
    assert len(set(alone)) > 2
    assert usage_of(reply).completion_tokens == 48


def test_seeds(client: OpenAI):
    texts = [complete(client, max_tokens=12, temperature=1.0, seed=seed).choices[0].text for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_a_prompt_that_is_known_is_found_in_the_cache(client: OpenAI):
    prompt = "PROSPERO:\n" + "Our revels now are ended. These our actors, as I foretold you, were all spirits. " * 2
    first = complete(client, prompt=prompt, max_tokens=1)
    again = complete(client, prompt=prompt, max_tokens=1, n=2, temperature=1.0)
    assert cached_tokens(first) == 0
    assert cached_tokens(again) >= usage_of(first).prompt_tokens - 16


def test_token_ids_are_a_prompt(client: OpenAI):
    reply = complete(client, prompt=PROMPT, max_tokens=4, extra_body={"return_token_ids": True})
    (choice,) = reply.model_dump()["choices"]
    by_ids = complete(client, prompt=choice["prompt_token_ids"], max_tokens=4, echo=True)
    assert by_ids.choices[0].text == PROMPT + choice["text"]
    lists = complete(client, prompt=[choice["prompt_token_ids"], choice["token_ids"]], max_tokens=4)
    assert lists.choices[0].text == choice["text"]
    assert usage_of(lists).prompt_tokens == usage_of(reply).prompt_tokens + 4


def test_logprobs_of_output_are_those_of_the_same_text_as_a_prompt(client: OpenAI):
    written = complete(client, max_tokens=10, logprobs=3, extra_body={"return_token_ids": True})
    (choice,) = written.model_dump()["choices"]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["text_offset"][0] == 0
    for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True):
        assert max(top, key=lambda name: top[name]) == token
    ids = choice["prompt_token_ids"] + choice["token_ids"]
    scored = complete(client, prompt=ids, max_tokens=0, echo=True, logprobs=1)
    read = scored.choices[0].logprobs
    assert read is not None
    assert scored.choices[0].text == PROMPT + choice["text"]
    assert read.token_logprobs is not None
    assert read.token_logprobs[0] is None
    assert read.token_logprobs[-10:] == pytest.approx(logprobs["token_logprobs"], abs=1e-4)
    assert usage_of(scored).completion_tokens == 0


def test_logprobs_and_echo_in_a_stream_are_those_of_the_completion(client: OpenAI):
    params: dict[str, Any] = {"max_tokens": 6, "logprobs": 2, "echo": True}
    whole = complete(client, **params).choices[0]
    chunks = [chunk.choices[0] for chunk in complete(client, stream=True, **params)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert whole.logprobs is not None
    for name in ("tokens", "text_offset"):
        streamed = [entry for chunk in chunks for entry in getattr(chunk.logprobs, name)]
        assert streamed == getattr(whole.logprobs, name)


def test_best_of_is_the_likeliest_of_its_choices(client: OpenAI):
    params: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "seed": 3}
    choices = complete(client, n=4, logprobs=0, **params).choices
    means: dict[str, float] = {}
    for choice in choices:
        assert choice.logprobs is not None
        logprobs = choice.logprobs.token_logprobs or []
        means[choice.text] = sum(logprobs) / len(logprobs)
    best = complete(client, n=1, best_of=4, **params)
    assert best.choices[0].text == max(means, key=lambda text: means[text])
    assert usage_of(best).completion_tokens == 24


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_before_itself(client: OpenAI, stream: bool):
    text = complete(client, max_tokens=24).choices[0].text
    stop = text[9:12]
    reply = complete(client, max_tokens=24, stop=[stop], stream=stream)
    choices = [chunk.choices[0] for chunk in reply] if stream else [reply.choices[0]]
    assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"
    assert choices[-1].model_dump()["stop_reason"] == stop


def test_edits_of_logits_arrive(client: OpenAI):
    first = complete(client, max_tokens=1, extra_body={"return_token_ids": True}).model_dump()["choices"][0]
    (likeliest,) = first["token_ids"]
    banned = complete(client, max_tokens=1, logit_bias={str(likeliest): -100})
    assert banned.choices[0].text != first["text"]
    biased = complete(client, max_tokens=5, extra_body={"logit_bias": [["q", 100]]})
    assert biased.choices[0].text == "qqqqq"
    for token in (likeliest, first["text"]):
        banned = complete(client, max_tokens=1, extra_body={"logit_bias": [[token, False]]})
        assert banned.choices[0].text != first["text"]
    only = complete(client, max_tokens=5, extra_body={"allowed_token_ids": [likeliest]})
    assert only.choices[0].text == first["text"] * 5
    without = complete(client, max_tokens=12, extra_body={"bad_words": [first["text"].strip()]})
    assert not without.choices[0].text.startswith(first["text"])
    repeated = complete(client, max_tokens=40, presence_penalty=2, frequency_penalty=2)
    assert repeated.choices[0].text != complete(client, max_tokens=40).choices[0].text


def test_a_chat(client: OpenAI):
    params: dict[str, Any] = {"model": BARD, "temperature": 0.0, "max_completion_tokens": 10}
    messages: Any = [
        {"role": "system", "content": "Speak."},
        {"role": "user", "content": [{"type": "text", "text": "O"}]},
    ]
    reply = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, **params)
    (choice,) = reply.choices
    assert (reply.object, reply.id[:9], choice.message.role) == ("chat.completion", "chatcmpl-", "assistant")
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    assert len(content) == usage_of(reply).completion_tokens
    assert b"".join(bytes(entry.bytes or ()) for entry in content).decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    chunks = list(client.chat.completions.create(messages=messages, stream=True, **params))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == choice.message.content
    assert chunks[-1].choices[0].finish_reason == choice.finish_reason


def test_a_chat_continues_in_the_last_message(client: OpenAI):
    messages: Any = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "But soft, what"}]
    extra = {"continue_final_message": True, "add_generation_prompt": False, "echo": True}
    reply = client.chat.completions.create(model=BARD, messages=messages, max_tokens=4, extra_body=extra)
    assert (reply.choices[0].message.content or "").startswith("But soft, what")


def test_replies_are_what_the_client_thinks_they_are(ring: RingClient):
    """The client builds its objects without validation, so they are validated here."""

    def post(path: str, **body: Any) -> Any:
        reply = httpx.post(f"{ring.url}/v1/{path}", json={"max_tokens": 3, **body}, timeout=TIMEOUT_S)
        assert reply.status_code == 200, reply.text
        return reply

    messages = [{"role": "user", "content": "Hi"}]
    Completion.model_validate(post("completions", prompt=PROMPT, logprobs=2).json())
    ChatCompletion.model_validate(post("chat/completions", messages=messages, logprobs=True).json())
    stream = post("chat/completions", messages=messages, stream=True, stream_options={"include_usage": True})
    frames = [line.removeprefix("data: ") for line in stream.text.split("\n") if line]
    assert frames[-1] == "[DONE]"
    for frame in frames[:-1]:
        ChatCompletionChunk.model_validate_json(frame)


def test_64_at_once(ring: RingClient):
    async def run() -> tuple[list[Completion], list[str]]:
        async with AsyncOpenAI(base_url=f"{ring.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:

            async def streamed(index: int) -> str:
                stream = await client.completions.create(
                    model=BARD, prompt=PROMPT, max_tokens=8, seed=index, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            whole = [
                client.completions.create(model=BARD, prompt=PROMPT, max_tokens=8, seed=index) for index in range(32)
            ]
            replies = await asyncio.gather(*whole, *(streamed(index) for index in range(32)))
        return replies[:32], replies[32:]

    whole, streams = asyncio.run(run())
    assert [reply.choices[0].text for reply in whole] == streams


def test_the_models(client: OpenAI):
    assert [model.id for model in client.models.list()] == [BARD]
    assert client.models.retrieve(BARD).id == BARD


def test_a_client_that_loses_patience_leaves_nothing_behind(client: OpenAI, ring: RingClient):
    for _ in range(MAX_TRIES):  # a client that is stopped finds the whole response in its socket
        try:
            complete(client, max_tokens=900, timeout=0.15, extra_body={"ignore_eos": True})
        except openai.APITimeoutError:
            break
    else:
        raise AssertionError("the client never lost patience")
    ring.wait_until_empty()


def test_a_stream_that_is_closed_leaves_nothing_behind(client: OpenAI, ring: RingClient):
    stream = complete(client, max_tokens=900, stream=True, n=4, temperature=1.0, extra_body={"ignore_eos": True})
    assert next(iter(stream)).choices
    stream.close()
    ring.wait_until_empty()


def test_a_deadline_brings_what_there_is(client: OpenAI):
    for timeout_s in (0.1, 0.3, 1.0, 2.0, 4.0) * 2:  # the machine may be busy, also just when the deadline comes
        reply = complete(client, max_tokens=900, extra_body={"timeout_s": timeout_s, "ignore_eos": True})
        if 0 < usage_of(reply).completion_tokens < 900:
            break
    assert (reply.choices[0].finish_reason, reply.choices[0].text != "") == ("timeout", True)
    assert 0 < usage_of(reply).completion_tokens < 900


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [3072]}, "prompt"),
        ({"prompt": "word " * 2000}, "prompt"),
        ({"extra_body": {"guided_json": {"not": {}}}}, "guided_json"),
    ],
)
def test_bad_requests(client: OpenAI, params: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as raised:
        complete(client, **params)
    assert raised.value.param == param


def test_an_unknown_model(client: OpenAI):
    with pytest.raises(openai.NotFoundError, match="The model `gpt-5` does not exist") as raised:
        complete(client, model="gpt-5")
    assert raised.value.code == "model_not_found"


def refused_during_a_stream(client: OpenAI) -> openai.InternalServerError:
    for _ in range(MAX_TRIES):  # for a slow client the stream may end first
        stream = complete(client, max_tokens=900, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        try:
            complete(client)
        except openai.InternalServerError as error:
            return error
        finally:
            stream.close()
    raise AssertionError("no request was refused during a stream")


def test_a_full_server_and_a_wrong_key(start_ring: Start):
    flags = ("--api-key", "secret", "--max-num-seqs", "1", "--max-queued-requests", "0")
    ring = start_ring(BARD_DIR, "--dtype", "float32", "--served-model-name", BARD, *flags)
    with connect(ring, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
        complete(stranger)
    with connect(ring, "secret") as client:
        refusal = refused_during_a_stream(client)
        assert refusal.status_code == 503
        assert int(refusal.response.headers["retry-after"]) >= 1
        patient = client.with_options(max_retries=5)
        assert complete(patient, max_tokens=1).choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="at most 1 may be open"):
            complete(client, n=2, temperature=1.0)
