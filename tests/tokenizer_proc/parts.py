"""Minimal encodings and chat templates."""

import json
from collections.abc import Callable
from typing import Any

from messages.ring.requests import ChatPrompt
from runtime.chat_files import DEFAULT, PLAIN_TEMPLATE, ChatFiles
from tokenizer_proc.chat import ChatTemplates
from tokenizer_proc.encoding import Encoding
from tokenizer_proc.joined_texts import JoinedTexts


def encoding_of(encode: Callable[[str], list[int]], longest_token_chars: int = 1) -> Encoding:
    """Adds no special tokens; an id is the code of its character."""
    return Encoding(
        to_ids=lambda text, add_special_tokens: encode(text),
        to_text=lambda ids: "".join(map(chr, ids)),
        token_of=chr,
        vocabulary=lambda: ["x" * longest_token_chars],
        join=lambda texts: JoinedTexts(encode(texts.text), 0),
    )


def templates_of(source: str = PLAIN_TEMPLATE, **special_tokens: str) -> ChatTemplates:
    return ChatTemplates(ChatFiles({DEFAULT: source}, special_tokens))


def chat(*messages: dict[str, Any], **fields: Any) -> ChatPrompt:
    """`template_kwargs` may be given as a dictionary."""
    if "template_kwargs" in fields:
        fields["template_kwargs"] = json.dumps(fields["template_kwargs"]).encode()
    return ChatPrompt(json.dumps(messages).encode(), **fields)


def user(content: Any = "Hi") -> dict[str, Any]:
    return {"role": "user", "content": content}
