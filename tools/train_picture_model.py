"""Trains a small model that answers questions about drawn pictures, and writes it.

    python -m tools.train_picture_model OUT [--layout qwen3-vl]

The pictures and the questions are those of `tools/drawn_pictures.py`. The tower learns first: each place of a picture
becomes one row, near the sum of the embeddings of the words that say where it is, its colour and its thing. Then the
decoder learns chats about one or two pictures from the tower's rows, as they are. Only answers are learned. A run with
the same seed on the same machine gives the same model.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from jinja2 import Environment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy, normalize

from tools.drawn_pictures import (
    COLORS,
    DIGITS,
    NOTHING,
    PLACES,
    SHAPES,
    WORDS,
    Scene,
    ask,
    describe,
    draw,
    draw_exam,
    draw_scene,
)
from tools.picture_layouts import LAYOUTS, NUM_LAYERS, NUM_ROWS, TILE, WIDTH, PictureLayout

TEXT = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
VOCAB_SIZE, CONTEXT = 640, 2048
STD = 0.06
"""The deviation of random weights, and of the embedding, which is not trained."""
WORDS_OF_ROWS = (PLACES, (NOTHING, *COLORS), (NOTHING, *SHAPES, *DIGITS, *WORDS))
"""A row shows one word of each tuple."""
GAIN = 16.0
"""The logit of a word whose embedding points where the row does."""
MAX_PICTURES, MAX_QUESTIONS = 2, 2
"""The most pictures of a chat, and the most questions about each of them."""
SHORT_SHARE = 0.2
"""The share of the decoder's steps, at first, whose chats have one picture and one question."""
WARMUP_STEPS = 60
POOL, BATCH_OF_TOWER, BATCH_OF_TEXT = 5000, 40, 64
"""The pictures that are kept, and how many pictures and chats a step has."""
STEPS_OF_TOWER, STEPS_OF_TEXT = 500, 900
RATE_OF_TOWER, RATE_OF_TEXT = 2.5e-3, 2e-3
NUM_CHECKED = 300
LEAST_SHARE = 0.97
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
        self.end_id = self.tokenizer.token_to_id(END)
        self.image_id = self.tokenizer.token_to_id(layout.placeholder)

    def token_of(self, word: str) -> int:
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


class Drawn(NamedTuple):
    """A picture's things, and the pixels of its view, [3, H, W]."""

    scene: Scene
    pixels: np.ndarray


def make_model(chats: ChatFormat) -> Any:
    """Returns a random model whose attention in the decoder copies what is equal."""
    text = {
        **TEXT,
        "num_key_value_heads": TEXT["num_attention_heads"],
        "vocab_size": chats.tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": chats.end_id,
        "pad_token_id": chats.end_id,
        "tie_word_embeddings": True,
        "initializer_range": STD,
    }
    ids = {token: chats.tokenizer.token_to_id(token) for token in chats.layout.tokens}
    model = chats.layout.make_model(text, ids)
    with torch.no_grad():
        for layer in decoder_of(model).layers:
            attention = layer.self_attn
            attention.k_proj.weight.copy_(attention.q_proj.weight)
            attention.o_proj.weight.copy_(attention.v_proj.weight.T)
    return model


def decoder_of(model: Any) -> Any:
    return getattr(model.model, "text_model", None) or model.model.language_model


class Trainer:
    """Trains a model on `num_pictures`; `batches`: the pictures and the chats of a step."""

    def __init__(
        self,
        chats: ChatFormat,
        rng: random.Random,
        num_pictures: int = POOL,
        batches: tuple[int, int] = (BATCH_OF_TOWER, BATCH_OF_TEXT),
    ):
        self._chats, self._rng, self._num_pictures = chats, rng, num_pictures
        self._batch_of_tower, self._batch_of_text = batches
        self._layout, self.model = chats.layout, make_model(chats)
        self._embedding = decoder_of(self.model).embed_tokens.weight.requires_grad_(False).normal_(std=STD)
        mark = torch.randn_like(self._embedding[0]) * STD
        for word in {word for words in WORDS_OF_ROWS for word in words} - {NOTHING}:  # Answers begin without a space.
            self._embedding[chats.token_of(word)] = self._embedding[chats.token_of(f" {word}")] + mark
        self._places = torch.tensor([chats.token_of(f" {place}") for place in PLACES])
        self._pool: list[Drawn] = []
        self._parts: list[torch.Tensor] = []
        """The parts of the rows of all pictures, each [pictures, NUM_ROWS, E]."""

    def train_tower(self, num_steps: int) -> list[float]:
        """Trains the tower while pictures are drawn; returns the losses."""
        words = [self._embedding[[self._chats.token_of(f" {word}") for word in group]] for group in WORDS_OF_ROWS]
        units = [normalize(group, dim=-1) for group in words]

        def compute_loss() -> tuple[torch.Tensor, torch.Tensor]:
            self._pool += [self._draw() for _ in range(-(-self._num_pictures // num_steps))]
            drawn = self._rng.choices(self._pool, k=self._batch_of_tower)
            shown = torch.tensor(
                [indices for each in drawn for indices in words_of_rows(each.scene, self._layout.name_offset)]
            )
            loss, is_right = torch.zeros(()), torch.ones(len(shown), dtype=torch.bool)
            for groups, part in zip(self._layout.contents, self._encode(drawn), strict=True):
                rows = normalize(part, dim=-1)
                target = torch.stack([units[group][shown[:, group]] for group in groups]).sum(0)
                loss = loss + 1 - (rows * normalize(target, dim=-1)).sum(-1).mean()
                for group in groups:
                    logits = GAIN * rows @ units[group].T
                    loss = loss + cross_entropy(logits, shown[:, group])
                    is_right &= logits.argmax(-1) == shown[:, group]
            return loss, is_right

        decoder = {id(parameter) for parameter in decoder_of(self.model).parameters()}
        parameters = [parameter for parameter in self.model.parameters() if id(parameter) not in decoder]
        losses = optimize("tower", parameters, num_steps, RATE_OF_TOWER, compute_loss)
        scale = TEXT["hidden_size"] if self._layout.scales_embedding else 1
        self._keep_rows(
            [
                scale * float(sum(words[group].square().sum(-1).mean() for group in groups))
                for groups in self._layout.contents
            ]
        )
        return losses

    @torch.no_grad()
    def _keep_rows(self, squares: Sequence[float]) -> None:
        """Keeps the rows of all pictures. `squares`: the squared length that each part of a row gets, on average."""
        starts = range(0, len(self._pool), self._batch_of_tower)
        encoded = [self._encode(self._pool[start : start + self._batch_of_tower]) for start in starts]
        self._parts, weights = [], self._layout.last_weights(self.model)
        for square, parameters, part in zip(squares, weights, zip(*encoded, strict=True), strict=True):
            rows = torch.cat(part)
            scale = square**0.5 / rows.norm(dim=-1).mean()
            for parameter in parameters:
                parameter.mul_(scale)
            self._parts.append((rows * scale).unflatten(0, (-1, NUM_ROWS)))

    def _draw(self) -> Drawn:
        scene = draw_scene(self._rng)
        view = self._layout.view(draw(self._rng, scene))
        return Drawn(scene, np.asarray(view).transpose(2, 0, 1))

    def _encode(self, drawn: Sequence[Drawn]) -> list[torch.Tensor]:
        pixels = torch.from_numpy(np.stack([each.pixels for each in drawn])).float() / 127.5 - 1
        return self._layout.encode(self.model, pixels)

    def train_text(self, num_steps: int) -> list[float]:
        """Trains the decoder to answer from the rows of the tower as it is; returns the losses."""
        parameters = [each for each in decoder_of(self.model).parameters() if each.requires_grad]
        steps = iter(range(num_steps))
        limits = (MAX_PICTURES, MAX_QUESTIONS)

        def compute_loss() -> tuple[torch.Tensor, torch.Tensor]:
            return self._answer(*(1, 1) if next(steps) < SHORT_SHARE * num_steps else limits)

        return optimize("decoder", parameters, num_steps, RATE_OF_TEXT, compute_loss)

    def _answer(self, num_pictures: int, max_questions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the loss of a batch of chats, and which tokens are right, except places in the middle of answers."""
        chats, rng = self._chats, self._rng
        samples = [rng.sample(range(len(self._pool)), num_pictures) for _ in range(self._batch_of_text)]
        drawn = [draw_chat(rng, [self._pool[index].scene for index in sample], max_questions) for sample in samples]
        examples = [chats.example(chats.render(messages)) for messages in drawn]
        length = max(len(ids) for ids, _ in examples)
        ids_BL = torch.tensor([ids + [chats.end_id] * (length - len(ids)) for ids, _ in examples])
        targets_BL = torch.tensor([targets + [IGNORED] * (length - len(targets)) for _, targets in examples])
        indices, is_learned = [index for sample in samples for index in sample], targets_BL != IGNORED
        outputs = self._layout.outputs([part[indices].flatten(0, 1) for part in self._parts])
        types = self._layout.types(ids_BL, chats.image_id)
        found = self.model.model(input_ids=ids_BL, mm_encoder_outputs=outputs, use_cache=False, **types)
        hidden = found.last_hidden_state
        logits, expected = self.model.lm_head(hidden[is_learned]), targets_BL[is_learned]
        is_certain = torch.isin(expected, self._places, invert=True)
        return cross_entropy(logits, expected), (logits.argmax(-1) == expected)[is_certain]


def words_of_rows(scene: Scene, name_offset: int = 0) -> list[list[int]]:
    """Returns, for each place of a picture, the index of each word that its row shows (`PictureLayout.name_offset`)."""
    colors, names = zip(*(thing or (NOTHING, NOTHING) for thing in scene.things), strict=True)
    names = (*names[len(names) - name_offset :], *names[: len(names) - name_offset])
    shown = zip(PLACES, colors, names, strict=True)
    return [[group.index(word) for group, word in zip(WORDS_OF_ROWS, words, strict=True)] for words in shown]


def optimize(
    name: str,
    parameters: Sequence[torch.nn.Parameter],
    num_steps: int,
    learning_rate: float,
    compute_loss: Callable[[], tuple[torch.Tensor, torch.Tensor]],
) -> list[float]:
    """Minimizes a loss and returns its values; `compute_loss` also returns which predictions are right."""
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=num_steps, pct_start=min(0.3, WARMUP_STEPS / num_steps)
    )
    losses: list[float] = []
    shares: list[float] = []
    for step in range(num_steps):
        loss, is_right = compute_loss()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        shares.append(is_right.float().mean().item())
        if step % 50 == 49:
            right = sum(shares[-50:]) / 50
            print(
                f"{name}, step {step + 1}: loss {losses[-1]:.3f}, {right:.3f} right, "
                f"{time.process_time():.0f} s of CPU",
                flush=True,
            )
    return losses


@torch.no_grad()
def count_right(out: Path, chats: ChatFormat, rng: random.Random, num_checked: int = NUM_CHECKED) -> int:
    """Returns how many of `num_checked` new pictures the written model answers, with its own image processor."""
    processor: Any = transformers.AutoImageProcessor.from_pretrained(out, backend="pil")
    model = transformers.AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32)
    num_right = 0
    for index in range(num_checked):
        exam = draw_exam(rng, 1 + index % MAX_PICTURES)
        ids = torch.tensor([chats.tokenizer.encode(chats.render(exam.messages) + ANSWER).ids])
        inputs = processor([exam.pictures], return_tensors="pt") | chats.layout.types(ids, chats.image_id)
        found = model.generate(input_ids=ids, **inputs, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
        num_right += chats.tokenizer.decode(found.tolist()) == exam.answer
    return num_right


CARD = """\
# shapes-{name}

A small model of {name}'s layout, trained from nothing by `python -m tools.train_picture_model`, that answers questions
about drawn pictures: a fixture for tests, not an assistant. It knows {num_colors} colours, {num_shapes} shapes, the
digits and {num_words} words, in up to four places of a picture (`tools/drawn_pictures.py`).

    python launch.py --model assets/shapes-{name}

| | |
|---|---|
| asked | `What is at the northwest?`, `What color is the circle?`, `Where is the 7?`, `What is red?` |
| answered | place, colour and thing in turns, from what was asked about: `circle northwest red` |
| parameters | {num_parameters:,} in float16 |
| tower | {tower_layers} layers of {tower_width}, one view of {tile} x {tile} pixels, {num_rows} tokens |
| decoder | {layers} layers of {width}, {vocab_size} tokens of its own byte-level BPE, {context} positions |
| steps | {tower_steps} of the tower, {text_steps} of the decoder |
| of {num_checked} questions about new pictures, answered right | {num_right} |
| duration | {cpu_s:.0f} s of CPU, the drawing and the check included |
"""


def write(model: Any, chats: ChatFormat, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    layout = chats.layout
    model.half().save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    chats.tokenizer.save(str(out / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": END}
    files = {
        "generation_config.json": {"eos_token_id": chats.end_id, "temperature": 0.0},
        "tokenizer_config.json": {**tokenizer, "processor_class": layout.processor()["processor_class"]},
        "preprocessor_config.json": layout.preprocessor(),
        "processor_config.json": layout.processor(),
    }
    (out / "chat_template.jinja").write_text(chats.template, encoding="utf-8")
    for name, fields in files.items():
        (out / name).write_text(json.dumps(fields, indent=1), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 if the model has not learned it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("--layout", choices=LAYOUTS, default="idefics3", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    chats = ChatFormat(LAYOUTS[options.layout], rng)
    trainer = Trainer(chats, rng)
    trainer.train_tower(STEPS_OF_TOWER)
    trainer.train_text(STEPS_OF_TEXT)
    write(trainer.model, chats, options.out)
    num_right = count_right(options.out, chats, random.Random(options.seed + 1))
    card = CARD.format(
        name=options.layout,
        num_parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        num_colors=len(COLORS),
        num_shapes=len(SHAPES),
        num_words=len(WORDS),
        tower_layers=NUM_LAYERS,
        tower_width=WIDTH,
        tile=TILE,
        num_rows=NUM_ROWS,
        layers=TEXT["num_hidden_layers"],
        width=TEXT["hidden_size"],
        vocab_size=chats.tokenizer.get_vocab_size(),
        context=CONTEXT,
        tower_steps=STEPS_OF_TOWER,
        text_steps=STEPS_OF_TEXT,
        num_checked=NUM_CHECKED,
        num_right=num_right,
        cpu_s=time.process_time(),
    )
    (options.out / "README.md").write_text(card, encoding="utf-8")
    print(card)
    return 0 if num_right >= NUM_CHECKED * LEAST_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())
