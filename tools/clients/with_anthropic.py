"""The official client of Anthropic's API."""

from anthropic import Anthropic
from steps import MAX_TOKENS, MODEL, PARAMETERS, PERSON, QUESTION, RESULT, URL, WEATHER, check, check_person

client = Anthropic(base_url=URL, api_key="none")
TOOL = {"name": "get_weather", "description": "weather", "input_schema": PARAMETERS}


def chat():
    reply = client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": QUESTION}])
    check(reply.content[0].text, "no text")


def stream():
    with client.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=[{"role": "user", "content": QUESTION}]
    ) as stream:
        check(len(list(stream.text_stream)) > 1, "no pieces")


def call():
    messages = [{"role": "user", "content": WEATHER}]
    chosen = {"type": "tool", "name": "get_weather"}
    reply = client.messages.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=messages, tools=[TOOL], tool_choice=chosen
    )
    use = next(block for block in reply.content if block.type == "tool_use")
    check("city" in use.input, "no argument")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": RESULT}
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
    reply = client.messages.create(model=MODEL, max_tokens=MAX_TOKENS, messages=messages, tools=[TOOL])
    check(reply.stop_reason, "no end")


def schema():
    reply = client.messages.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=[{"role": "user", "content": "Invent a person."}],
        output_config={"format": {"type": "json_schema", "schema": PERSON}},
    )
    check_person(reply.content[0].text)
