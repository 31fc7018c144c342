"""The official client of Ollama's API."""

import ollama
from steps import MAX_TOKENS, MODEL, NO_CALL, PERSON, QUESTION, RESULT, TOOL, URL, WEATHER, check, check_person

client = ollama.Client(host=URL)
OPTIONS = {"num_predict": MAX_TOKENS, "num_ctx": 4096}


def chat():
    reply = client.chat(MODEL, [{"role": "user", "content": QUESTION}], options=OPTIONS)
    check(reply.message.content, "no text")
    check(client.show(MODEL).capabilities, "no capabilities")


def stream():
    lines = list(client.chat(MODEL, [{"role": "user", "content": QUESTION}], stream=True, options=OPTIONS))
    check(len(lines) > 2 and lines[-1].eval_count, "no pieces or no count")


def call():
    messages = [{"role": "user", "content": WEATHER}]
    reply = client.chat(MODEL, messages, tools=[TOOL], options=OPTIONS)
    messages += [reply.message, {"role": "tool", "tool_name": "get_weather", "content": RESULT}]
    check(client.chat(MODEL, messages, tools=[TOOL], options=OPTIONS).done, "no end")
    return "" if reply.message.tool_calls else NO_CALL


def schema():
    reply = client.chat(MODEL, [{"role": "user", "content": "Invent a person."}], format=PERSON, options=OPTIONS)
    check_person(reply.message.content)


def embed():
    check(len(client.embed(MODEL, ["one", "two"]).embeddings) == 2, "no vectors")
