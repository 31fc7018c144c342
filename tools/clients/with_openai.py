"""The official client of OpenAI's API."""

import json

from openai import OpenAI
from steps import MAX_TOKENS, MODEL, PERSON, QUESTION, RESULT, TOOL, URL, WEATHER, check, check_person

client = OpenAI(base_url=f"{URL}/v1", api_key="none")


def chat():
    reply = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=MAX_TOKENS
    )
    check(reply.choices[0].message.content, "no text")
    response = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=MAX_TOKENS)
    check(response.output_text, "no text in the response")


def stream():
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=MAX_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(chunks)
    check(len(chunks) > 2 and chunks[-1].usage.completion_tokens, "no pieces or no usage")


def call():
    messages = [{"role": "user", "content": WEATHER}]
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    reply = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], tool_choice=chosen, max_tokens=MAX_TOKENS
    )
    message = reply.choices[0].message
    check("city" in json.loads(message.tool_calls[0].function.arguments), "no argument")
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}]
    reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=MAX_TOKENS)
    check(reply.choices[0].finish_reason, "no end")


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    reply = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=form,
        max_tokens=MAX_TOKENS,
    )
    check_person(reply.choices[0].message.content)


def embed():
    vectors = client.embeddings.create(model=MODEL, input=["one", "two"]).data
    check(len(vectors) == 2 and len(vectors[0].embedding) > 8, "no vectors")
