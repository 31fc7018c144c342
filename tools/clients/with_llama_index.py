"""LlamaIndex, with its classes for servers like OpenAI's."""

import json

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
from steps import MAX_TOKENS, MODEL, QUESTION, RESULT, URL, WEATHER, check

model = OpenAILike(
    model=MODEL,
    api_base=f"{URL}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    max_tokens=MAX_TOKENS,
)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def get_weather(city: str) -> str:
    """Returns the weather."""
    return RESULT


def chat():
    check(model.chat([ChatMessage(QUESTION)]).message.content, "no text")


def stream():
    check(len(list(model.stream_chat([ChatMessage(QUESTION)]))) > 1, "no pieces")


def call():
    tool = FunctionTool.from_defaults(get_weather)
    reply = model.chat_with_tools([tool], user_msg=WEATHER, tool_required=True)
    (made,) = model.get_tool_calls_from_response(reply)[:1]
    check("city" in made.tool_kwargs, "no argument")
    result = ChatMessage(RESULT, role="tool", additional_kwargs={"tool_call_id": made.tool_id})
    history = [ChatMessage(WEATHER), reply.message, result]
    check(model.chat_with_tools([tool], chat_history=history).raw.choices[0].finish_reason, "no end")


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema()}}
    reply = model.chat([ChatMessage("Invent a person.")], response_format=form)
    check(Person(**json.loads(reply.message.content)).name, "no person")


def embed():
    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key="none")
    check(len(embedding.get_text_embedding_batch(["one", "two"])) == 2, "no vectors")
