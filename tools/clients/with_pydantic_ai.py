"""Pydantic AI, with its model class for OpenAI's chats."""

import asyncio

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from steps import MAX_TOKENS, MODEL, NO_CALL, QUESTION, RESULT, URL, WEATHER, check

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none"))
SETTINGS = {"max_tokens": MAX_TOKENS, "temperature": 0}


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def chat():
    check(Agent(model).run_sync(QUESTION, model_settings=SETTINGS).output, "no text")


async def _num_pieces():
    async with Agent(model).run_stream(QUESTION, model_settings=SETTINGS) as result:
        return len([piece async for piece in result.stream_text(delta=True, debounce_by=None)])


def stream():
    check(asyncio.run(_num_pieces()) > 1, "no pieces")


def call():
    agent, cities = Agent(model), []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Returns the weather."""
        cities.append(city)
        return RESULT

    check(agent.run_sync(WEATHER, model_settings=SETTINGS).output is not None, "no end")
    return "" if cities else NO_CALL


def schema():
    agent = Agent(model, output_type=NativeOutput(Person))
    check(agent.run_sync("Invent a person.", model_settings=SETTINGS).output.name, "no person")
