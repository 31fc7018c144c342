"""Instructor, which turns pydantic's models into schemas and calls."""

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field
from steps import MAX_TOKENS, MODEL, URL, check

openai = OpenAI(base_url=f"{URL}/v1", api_key="none")
MESSAGES = [{"role": "user", "content": "Invent a person."}]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def _person(mode, **fields):
    client = instructor.from_openai(openai, mode=mode)
    create = client.chat.completions.create_partial if fields else client.chat.completions.create
    return create(model=MODEL, messages=MESSAGES, response_model=Person, max_tokens=MAX_TOKENS, max_retries=0)


def stream():
    check(len(list(_person(instructor.Mode.JSON_SCHEMA, is_partial=True))) > 1, "no pieces")


def call():
    check(_person(instructor.Mode.TOOLS).name, "no person")


def schema():
    check(_person(instructor.Mode.JSON_SCHEMA).name, "no person")
