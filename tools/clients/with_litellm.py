"""LiteLLM, with its providers for vLLM and Ollama."""

import litellm
from steps import MAX_TOKENS, MODEL, PERSON, QUESTION, RESULT, TOOL, URL, WEATHER, check, check_person

FIELDS = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": "none"}
LIMIT = {**FIELDS, "max_tokens": MAX_TOKENS}


def _ask(text, **fields):
    return litellm.completion(messages=[{"role": "user", "content": text}], **{**LIMIT, **fields})


def chat():
    check(_ask(QUESTION).choices[0].message.content, "no text")
    check(_ask(QUESTION, model=f"ollama_chat/{MODEL}", api_base=URL).choices[0].message.content, "no text by Ollama")


def stream():
    check(len(list(_ask(QUESTION, stream=True))) > 1, "no pieces")
    check(len(list(_ask(QUESTION, stream=True, model=f"ollama_chat/{MODEL}", api_base=URL))) > 1, "no lines")


def call():
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    message = _ask(WEATHER, tools=[TOOL], tool_choice=chosen).choices[0].message
    made = message.tool_calls[0]
    check("city" in made.function.arguments, "no argument")
    messages = [{"role": "user", "content": WEATHER}, message.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": made.id, "content": RESULT})
    check(litellm.completion(messages=messages, tools=[TOOL], **LIMIT).choices[0].finish_reason, "no end")


def schema():
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    check_person(_ask("Invent a person.", response_format=form).choices[0].message.content)


def embed():
    check(len(litellm.embedding(input=["one", "two"], **FIELDS).data) == 2, "no vectors")
