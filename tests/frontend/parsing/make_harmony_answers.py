"""Writes harmony_answers.json: answers of gpt-oss, and the messages that OpenAI's own parser finds in them.

Run with `openai_harmony` installed, which loads its vocabulary from the network: python make_harmony_answers.py
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("harmony_answers.json")
PARIS = '{"city": "Paris", "days": 2}'
ANSWERS = {
    "a thought and an answer": "<|channel|>analysis<|message|>User asks: 2 + 2.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is **4**.<|return|>",
    "an answer alone": "<|channel|>final<|message|>Hello 😀, {\n  world }\n\n<b>!<|return|>",
    "a call behind its channel": "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant"
    f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{PARIS}<|call|>",
    "a call before its channel": "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant"
    f" to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{PARIS}<|call|>",
    "a call as templates write it": f" to=functions.get_weather<|channel|>commentary json<|message|>{PARIS}<|call|>",
    "a call without a type": "<|channel|>commentary to=functions.now<|message|>{}<|call|>",
    "a call with a type close by": "<|channel|>commentary to=functions.now<|constrain|>json<|message|>{}<|call|>",
    "a call in the thought": "<|channel|>analysis to=functions.now code<|message|>{}<|call|>",
    "a tool whose name has parts": '<|channel|>commentary to=functions.a-b.c_1 json<|message|>{"x": [1, {}]}<|call|>',
    "a preamble and a call": "<|channel|>analysis<|message|>Two steps.<|end|><|start|>assistant"
    "<|channel|>commentary<|message|>I will look it up.<|end|><|start|>assistant"
    "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
    "two thoughts": "<|channel|>analysis<|message|>First.<|end|><|start|>assistant<|channel|>analysis<|message|>"
    "Second.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
    "an answer in JSON": '<|channel|>final <|constrain|>JSON<|message|>{"ok": true}<|return|>',
    "a built-in tool": '<|channel|>commentary to=browser.search code<|message|>{"query": "x"}<|call|>',
    "code of the built-in tool": "<|channel|>analysis to=python code<|message|>print(1 < 2)<|call|>",
    "an unknown channel": "<|channel|>summary<|message|>In short.<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Long.<|return|>",
    "no end": "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is",
    "a thought without an end": "<|channel|>analysis<|message|>Hm, it",
    "words of the format": "<|channel|>final<|message|>Write analysis to=functions.now, final, message.<|return|>",
}


def main() -> None:
    library: Any = import_module("openai_harmony")
    encoding = library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
    found: dict[str, Any] = {}
    for name, text in ANSWERS.items():
        parser = library.StreamableParser(encoding, role=library.Role.ASSISTANT)
        for token in encoding.encode(text, allowed_special="all"):
            parser.process(token)
        messages = [
            [message.channel, message.recipient, "".join(part.text for part in message.content)]
            for message in parser.messages
        ]
        if parser.current_content:
            messages.append([parser.current_channel, parser.current_recipient, parser.current_content])
        found[name] = {"text": text, "messages": messages}
    FILE.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
