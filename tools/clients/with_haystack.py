"""Haystack, with its components for OpenAI's API."""

from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from steps import MAX_TOKENS, MODEL, PARAMETERS, PERSON, QUESTION, RESULT, URL, WEATHER, check, check_person

FIELDS = {"model": MODEL, "api_base_url": f"{URL}/v1", "api_key": Secret.from_token("none")}


def _ask(messages, **fields):
    tools, stream = fields.pop("tools", None), fields.pop("stream", None)
    kwargs = {"max_tokens": MAX_TOKENS, **fields}
    generator = OpenAIChatGenerator(**FIELDS, generation_kwargs=kwargs, tools=tools, streaming_callback=stream)
    return generator.run(messages)["replies"][0]


def chat():
    check(_ask([ChatMessage.from_user(QUESTION)]).text, "no text")


def stream():
    pieces = []
    _ask([ChatMessage.from_user(QUESTION)], stream=pieces.append)
    check(len(pieces) > 1, "no pieces")


def call():
    tool = Tool("get_weather", "weather", PARAMETERS, lambda city: RESULT)
    messages = [ChatMessage.from_user(WEATHER)]
    reply = _ask(messages, tools=[tool], tool_choice={"type": "function", "function": {"name": "get_weather"}})
    made = reply.tool_calls[0]
    check("city" in made.arguments, "no argument")
    messages += [reply, ChatMessage.from_tool(RESULT, origin=made)]
    check(_ask(messages, tools=[tool]).meta["finish_reason"], "no end")


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    check_person(_ask([ChatMessage.from_user("Invent a person.")], response_format=form).text)


def embed():
    check(len(OpenAITextEmbedder(**FIELDS).run("one")["embedding"]) > 8, "no vector")
