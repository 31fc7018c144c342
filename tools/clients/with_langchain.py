"""LangChain, with its classes for OpenAI's API."""

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
from steps import MAX_TOKENS, MODEL, QUESTION, RESULT, URL, WEATHER, check

model = ChatOpenAI(model=MODEL, base_url=f"{URL}/v1", api_key="none", max_tokens=MAX_TOKENS)


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@tool
def get_weather(city: str) -> str:
    """Returns the weather."""
    return RESULT


def chat():
    check(model.invoke(QUESTION).content, "no text")


def stream():
    check(len(list(model.stream(QUESTION))) > 1, "no pieces")


def call():
    messages = [HumanMessage(WEATHER)]
    reply = model.bind_tools([get_weather], tool_choice="get_weather").invoke(messages)
    made = reply.tool_calls[0]
    check("city" in made["args"], "no argument")
    messages += [reply, ToolMessage(get_weather.invoke(made["args"]), tool_call_id=made["id"])]
    check(model.bind_tools([get_weather]).invoke(messages).response_metadata["finish_reason"], "no end")


def schema():
    check(model.with_structured_output(Person, method="json_schema").invoke("Invent a person.").name, "no person")


def embed():
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=f"{URL}/v1", api_key="none", check_embedding_ctx_length=False)
    check(len(embeddings.embed_documents(["one", "two"])) == 2, "no vectors")
