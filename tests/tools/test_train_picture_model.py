"""The tokens of a chat that are trained on, that losses fall, and that the model in assets/ is the tool's."""

import json
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from tools.drawn_pictures import draw_scene
from tools.picture_layouts import LAYOUTS
from tools.train_picture_model import END, IGNORED, WORDS_OF_ROWS, ChatFormat, Trainer, draw_chat

MODEL = Path(__file__).resolve().parents[2] / "assets" / "shapes-idefics3"


@pytest.fixture(scope="module")
def chats() -> ChatFormat:
    return ChatFormat(LAYOUTS["idefics3"], random.Random(1))


def test_answers_are_learned_and_nothing_else(chats: ChatFormat):
    rng = random.Random(2)
    for _ in range(20):
        messages = draw_chat(rng, [draw_scene(rng), draw_scene(rng)])
        ids, targets = chats.example(chats.render(messages))
        assert all(target in (IGNORED, follows) for target, follows in zip(targets, ids[1:], strict=False))
        learned = [target for target in targets if target != IGNORED]
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert chats.tokenizer.decode(learned, skip_special_tokens=False).split(END)[:-1] == answers


def test_each_word_of_a_row_is_a_token(chats: ChatFormat):
    tokens = {chats.token_of(f" {word}") for words in WORDS_OF_ROWS for word in words}
    assert len(tokens) == len({word for words in WORDS_OF_ROWS for word in words})


def test_losses_fall(chats: ChatFormat):
    torch.manual_seed(1)
    trainer = Trainer(chats, random.Random(1), num_pictures=40, batches=(4, 8))
    for losses in (trainer.train_tower(20), trainer.train_text(20)):
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_bundled_model_is_of_this_tool(chats: ChatFormat):
    bundled = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert bundled.get_vocab() == chats.tokenizer.get_vocab()
    assert (MODEL / "chat_template.jinja").read_text(encoding="utf-8") == chats.template
    size = sum(path.stat().st_size for path in MODEL.iterdir())
    assert size < 5e6
    assert json.loads((MODEL / "config.json").read_text(encoding="utf-8"))["model_type"] == "idefics3"
