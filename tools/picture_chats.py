"""Chats about drawn pictures: their text, its tokens, and which of them are learned."""

import random
from collections.abc import Sequence

from jinja2 import Environment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.drawn_pictures import Scene, ask, describe, draw_scene
from tools.picture_layouts import PictureLayout

VOCAB_SIZE = 640
IGNORED = -100
START, END, IMAGE, ANSWER = "<|im_start|>", "<end_of_utterance>", "<image>", "Assistant:"
TEMPLATE = """\
{{- '<|im_start|>' }}
{%- for message in messages %}{{ message.role | capitalize + ':' }}
{%- if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}
{{- '<end_of_utterance>' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""


def draw_chat(rng: random.Random, scenes: Sequence[Scene], max_questions: int = 3) -> list[dict[str, object]]:
    """Returns the messages of a chat about pictures. Each comes first in a message, and answers are about the last."""
    messages: list[dict[str, object]] = []
    for scene in scenes:
        parts: list[dict[str, str]] = [{"type": "image"}]
        for _ in range(rng.randint(1, max_questions)):
            question = rng.choice((ask, ask, describe))(rng, scene)
            messages.append({"role": "user", "content": [*parts, {"type": "text", "text": question.text}]})
            messages.append({"role": "assistant", "content": question.answer})
            parts = []
    return messages


class ChatFormat:
    """The chat template and the tokenizer of a layout; the tokenizer is trained on chats."""

    def __init__(self, layout: PictureLayout, rng: random.Random):
        self.layout, self.template = layout, TEMPLATE.replace(IMAGE, layout.part)
        self._template = Environment(trim_blocks=True, lstrip_blocks=True).from_string(self.template)
        self.tokenizer = Tokenizer(models.BPE())
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[END, START, *layout.tokens],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        self.tokenizer.train_from_iterator((self._draw_text(rng) for _ in range(3000)), trainer)
        self._start_ids = self.tokenizer.encode(ANSWER).ids
        self.end_id, self.image_id = self.token_of(END), self.token_of(layout.placeholder)

    def token_of(self, word: str) -> int:
        """Returns the id of a word or special token that is one token."""
        (token,) = self.tokenizer.encode(word).ids
        return token

    def _draw_text(self, rng: random.Random) -> str:
        return self._template.render(messages=draw_chat(rng, [draw_scene(rng)]))

    def render(self, messages: Sequence[dict[str, object]]) -> str:
        """Returns the text of a chat with the tokens of its images."""
        return self._template.render(messages=messages).replace(self.layout.part, self.layout.shown)

    def example(self, text: str) -> tuple[list[int], list[int]]:
        """Returns the token ids of a chat, and what is to be learned after each: the answers' tokens."""
        ids = self.tokenizer.encode(text).ids
        targets = [IGNORED] * len(ids)
        is_learned, num_start = False, len(self._start_ids)
        for index in range(len(ids) - 1):
            is_learned = is_learned or ids[max(0, index + 1 - num_start) : index + 1] == self._start_ids
            if is_learned:
                targets[index] = ids[index + 1]
                is_learned = ids[index + 1] != self.end_id
        return ids, targets
