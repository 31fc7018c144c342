"""The tokens of a chat that are trained on, and that the model in assets/ is the one that the tool makes."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tools.train_tool_model import IGNORED, NO_TOOL, TEMPLATE, ChatFormat, draw_chat

MODEL = Path(__file__).resolve().parents[2] / "assets" / "tool-caller"


@pytest.fixture(scope="module")
def chats() -> ChatFormat:
    return ChatFormat(random.Random(1))


def test_what_the_assistant_reports_is_learned_and_nothing_else(chats: ChatFormat):
    rng = random.Random(2)
    seen: set[bool] = set()
    for _ in range(20):
        messages, tools = draw_chat(rng)
        ids, targets = chats.example(messages, tools)
        assert all(target in (IGNORED, follows) for target, follows in zip(targets, ids[1:], strict=False))
        learned = chats.tokenizer.decode(
            [target for target in targets if target != IGNORED], skip_special_tokens=False
        ).split("<|im_end|>")[:-1]
        spoken = [message for message in messages if message["role"] == "assistant"]
        assert len(learned) == len(spoken)
        for text, message in zip(learned, spoken, strict=True):
            call = message.get("tool_calls", [{}])[0].get("function")
            assert text == message.get("content", f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
            seen.update([call is not None, text == NO_TOOL])
    assert seen == {True, False}


def test_the_bundled_model_is_of_this_tool(chats: ChatFormat):
    bundled = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert bundled.get_vocab() == chats.tokenizer.get_vocab()
    config = json.loads((MODEL / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == TEMPLATE
