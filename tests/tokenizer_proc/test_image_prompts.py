"""The ids of prompts with images are those of transformers' processors, and each image has its span."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from messages.columns import pack_int32, unpack_int32
from messages.config.server import Config, ModelFacts
from messages.errors import RequestError
from messages.ring.images import ImageInput
from messages.ring.infill import Infill
from messages.ring.requests import (
    ChatPrompt,
    EncodeMsg,
    SamplingParams,
    Sibling,
    Stamps,
    TokenizeMsg,
    Truncation,
    UserMsg,
)
from runtime.chat_files import DEFAULT, read_chat_files
from runtime.images.layout import Budget
from runtime.images.registry import read_rule
from tests.runtime.images.references import Reference, facts_of, picture
from tests.vision_models import SAMPLES, make_vision_model
from tokenizer_proc.chat import ChatTemplates
from tokenizer_proc.encoding import load_encoding
from tokenizer_proc.image_forms import number_images
from tokenizer_proc.process import load_server
from tokenizer_proc.prompts import PromptReader

IMAGE = {"type": "image"}
FAMILIES = [name for name in SAMPLES if name != "lfm2_vl"]  # which has no processor without torchvision


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


class Model:
    """A model's tokenizer with its rule of images, as the tokenizer process has them."""

    def __init__(self, directory: Path, max_model_len: int = 100_000, template: str | None = None):
        self.directory, facts = directory, facts_of(directory)
        self.rule = read_rule(facts)
        files = replace(read_chat_files(str(directory)), image_marker=self.rule.marker, image_part=self.rule.part)
        files = files if template is None else replace(files, templates={DEFAULT: template})
        self.templates = ChatTemplates(files)
        self.encoding = load_encoding(str(directory))
        self.placeholder_id = self.encoding.id_of(self.rule.placeholder)
        self.reader = PromptReader(self.encoding, 1 << 20, max_model_len, vision=facts)

    def read(self, message: TokenizeMsg) -> UserMsg:
        return next(iter(self.read_all(message)))

    def read_all(self, message: TokenizeMsg) -> Iterator[UserMsg]:
        return self.reader.read(message, self.reader.text_of(message, self.templates.render), 1)

    def check(self, user: UserMsg, sizes: Sequence[tuple[int, int]]) -> None:
        """Checks that the spans have the placeholders of the images, in their order."""
        ids = np.asarray(unpack_int32(user.input_ids))
        assert [span.image for span in user.spans] == list(range(len(sizes)))
        num_rows = []
        for span, size in zip(user.spans, sizes, strict=True):
            inside = ids[span.start : span.end]
            assert inside[0] == inside[-1] == self.placeholder_id == span.placeholder
            layout = self.rule.layout(size, Budget(), len(sizes))
            assert (inside == self.placeholder_id).sum() == layout.num_tokens
            assert (span.kind, span.is_two_way) == ("image", self.rule.is_two_way)
            assert (span.num_lines, span.num_columns) == (layout.grid if self.rule.has_axes else (0, 0))
            num_rows.append(layout.num_tokens)
        assert [image.digest for image in user.images] == [image.digest for image in inputs(sizes)]
        assert [image.encoding_digest() for image in user.images] == [span.digest for span in user.spans]


def inputs(sizes: Sequence[tuple[int, int]], **limits: int) -> tuple[ImageInput, ...]:
    return tuple(
        ImageInput(bytes([index] * 16), *size, param=f"messages[{index}]", **limits) for index, size in enumerate(sizes)
    )


def message_of(messages: list[dict[str, Any]], sizes: Sequence[tuple[int, int]], **fields: Any) -> TokenizeMsg:
    chat = ChatPrompt(json.dumps(messages, ensure_ascii=False).encode(), **fields.pop("chat", {}))
    params = SamplingParams(max_tokens=fields.pop("max_tokens", 10))
    return TokenizeMsg(1, 0, None, b"", params, Stamps(), chat=chat, images=inputs(sizes), **fields)


def text_message(words: str, sizes: Sequence[tuple[int, int]], **fields: Any) -> TokenizeMsg:
    return TokenizeMsg(1, 0, words, b"", SamplingParams(max_tokens=10), Stamps(), images=inputs(sizes), **fields)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(make_vision_model(request.param, tmp_path_factory.mktemp("models") / request.param))


@pytest.fixture(scope="module")
def smolvlm(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(make_vision_model("idefics3", tmp_path_factory.mktemp("models") / "idefics3"))


CHATS: list[tuple[list[dict[str, Any]], list[tuple[int, int]]]] = [
    ([{"role": "user", "content": [IMAGE, text("What is it?")]}], [(64, 64)]),
    ([{"role": "user", "content": [text("Look:"), IMAGE, text("and"), IMAGE]}], [(100, 300), (333, 40)]),
    (
        [
            {"role": "user", "content": [IMAGE, text("This?")]},
            {"role": "assistant", "content": [text("A cat.")]},
            {"role": "user", "content": [text("And these?"), IMAGE, IMAGE]},
        ],
        [(40, 40), (3, 200), (1, 1)],
    ),
]


@pytest.mark.parametrize("chat", CHATS)
def test_ids_are_those_of_the_processor(model: Model, chat: tuple[list[dict[str, Any]], list[tuple[int, int]]]):
    messages, sizes = chat
    expected = Reference(model.directory).ids(messages, [picture(size) for size in sizes])
    user = model.read(message_of(messages, sizes))
    assert unpack_int32(user.input_ids).tolist() == expected
    model.check(user, sizes)


def test_words_of_a_client_are_not_images(model: Model):
    words = f"{model.rule.marker} and {model.rule.placeholder}"
    sizes = [(64, 64), (40, 90)]
    content = [text(words), IMAGE, text(words), IMAGE, text(words)]
    user = model.read(message_of([{"role": "user", "content": content}], sizes))
    model.check(user, sizes)
    ids = unpack_int32(user.input_ids).tolist()
    num_in_words = words.count(model.rule.placeholder) * 3
    num_rows = sum(model.rule.layout(size, Budget(), 2).num_tokens for size in sizes)
    assert ids.count(model.placeholder_id) == num_in_words + num_rows
    assert model.encoding.to_text(ids).count(words) == 3
    without = model.read(message_of([{"role": "user", "content": words}], []))
    assert without.spans == ()


def test_a_text_has_its_images_first_unless_it_has_their_markers(model: Model):
    sizes = [(64, 64), (90, 40)]
    first = model.read(text_message("What?", sizes, add_special_tokens=False))
    model.check(first, sizes)
    placed = model.read(text_message(f"a{model.rule.part}b{model.rule.part}c", sizes, add_special_tokens=False))
    model.check(placed, sizes)
    texts = [model.encoding.to_text(unpack_int32(user.input_ids).tolist()) for user in (first, placed)]
    expanded = [
        model.rule.part.replace(model.rule.marker, model.rule.text(model.rule.layout(size, Budget(), 2)))
        for size in sizes
    ]
    assert texts == ["".join(expanded) + "What?", f"a{expanded[0]}b{expanded[1]}c"]


def test_tool_results_keep_their_images(model: Model):
    """Reports 29 and 30: they are not lost, dropped or moved to the front."""
    call = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    messages = [
        {"role": "user", "content": [IMAGE, text("Compare it with the next one")]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": [IMAGE, text("taken at noon")]},
        {"role": "user", "content": [text("and this"), IMAGE]},
    ]
    sizes = [(64, 64), (100, 40), (40, 100)]
    user = model.read(message_of(messages, sizes))
    model.check(user, sizes)


@pytest.mark.parametrize("role", ["system", "assistant", "user"])
def test_images_of_any_role_are_used(model: Model, role: str):
    messages = [{"role": role, "content": [IMAGE, text("See.")]}, {"role": "user", "content": "What is it?"}]
    if role == "assistant":
        messages.insert(0, {"role": "user", "content": "Draw."})
    model.check(model.read(message_of(messages, [(64, 64)])), [(64, 64)])


TEXT_ONLY = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
NO_TOOLS = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'tool' or m.content is string %}{{ m.content if m.content "
    "is string else m.content[0].text }}{% else %}{% for p in m.content %}{% if p.type == 'image_url' %}<image>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


def test_a_template_without_parts_gets_the_marker_in_the_text(smolvlm: Model):
    model = Model(smolvlm.directory, template=TEXT_ONLY)
    messages = [
        {"role": "system", "content": [text("s"), IMAGE]},
        {"role": "user", "content": [text("a"), IMAGE, text("b")]},
    ]
    pieces = model.templates.render(numbered(messages))
    assert pieces.texts == ("[system]s[user]", "\na\n", "\nb")
    assert pieces.images == (0, 1)


def test_an_image_without_a_place_goes_into_the_next_turn_of_the_user(smolvlm: Model):
    model = Model(smolvlm.directory, template=NO_TOOLS)
    messages = [
        {"role": "user", "content": [IMAGE, text("a")]},
        {"role": "tool", "content": [text("t"), IMAGE, IMAGE]},
        {"role": "tool", "content": [text("u"), IMAGE]},
    ]
    rendered = model.templates.render(numbered([*messages, {"role": "user", "content": [text("b"), IMAGE]}]))
    assert rendered.texts == ("[user]", "a[tool]t[tool]u[user]", "", "", "b", "")
    assert rendered.images == (0, 1, 2, 3, 4)
    alone = model.templates.render(numbered(messages))
    assert alone.texts == ("[user]", "a[tool]t[tool]u[user]", "", "", "")


def numbered(messages: list[dict[str, Any]]) -> ChatPrompt:
    return number_images(ChatPrompt(json.dumps(messages).encode()))


def test_system_messages_that_move_leave_their_images_in_order(smolvlm: Model):
    template = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
        "[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    model = Model(smolvlm.directory, template=template)
    messages = [
        {"role": "user", "content": [IMAGE, text("a")]},
        {"role": "system", "content": [text("s"), IMAGE]},
        {"role": "user", "content": [IMAGE, text("b")]},
    ]
    rendered = model.templates.render(numbered(messages))
    assert rendered.images == (0, 1, 2)
    assert rendered.texts == ("[system]s[user]", "a[user]", "", "b")


def test_a_template_that_shows_no_image_is_an_error(smolvlm: Model):
    """Report 31: an image that is not used is an error."""
    model = Model(smolvlm.directory, template="{% for m in messages %}{{ m.role }}{% endfor %}")
    with pytest.raises(RequestError, match="0 places for 1 images") as raised:
        model.read(message_of([{"role": "user", "content": [IMAGE]}], [(64, 64)]))
    assert raised.value.info.status == 400


def test_siblings_and_continuations_have_the_same_spans(smolvlm: Model):
    messages, sizes = CHATS[1]
    message = message_of(messages, sizes, siblings=(Sibling(7, 3),), output_ids=pack_int32([5, 6]))
    first, second = smolvlm.read_all(message)
    assert first.spans == second.spans
    assert first.images == second.images
    assert first.output_ids == pack_int32([5, 6])
    assert smolvlm.read(msgspec.structs.replace(message, output_ids=b"")).spans == first.spans


def test_internvl_has_a_template_of_its_own(tmp_path: Path):
    directory = make_vision_model("internvl", tmp_path / "internvl")
    expected = Model(directory).read(message_of(*CHATS[1]))
    template = directory / "chat_template.jinja"
    template.write_text(template.read_text().replace("<IMG_CONTEXT>", "<image>"))
    facts = ModelFacts(
        model_dir=str(directory),
        tokenizer_dir=str(directory),
        served_names=("m",),
        vocab_size=1 << 20,
        max_model_len=4096,
        vision=facts_of(directory),
    )
    [user] = load_server(Config(facts=facts)).answer(message_of(*CHATS[1]))
    assert isinstance(user, UserMsg)
    assert user.input_ids == expected.input_ids
    assert user.spans == expected.spans


def test_no_image_may_be_cut(smolvlm: Model):
    messages = [{"role": "user", "content": [text("Long before."), IMAGE, text("Long behind.")]}]
    whole = smolvlm.read(message_of(messages, [(64, 64)]))
    [span] = whole.spans
    num_ids = len(unpack_int32(whole.input_ids))
    kept = smolvlm.read(message_of(messages, [(64, 64)], truncation=Truncation(num_ids - span.start)))
    assert kept.spans[0].start == 0
    right = smolvlm.read(message_of(messages, [(64, 64)], truncation=Truncation(span.end, "right")))
    assert right.spans == whole.spans
    for truncation in (Truncation(num_ids - span.start - 1), Truncation(span.end - 1, "right"), Truncation(3)):
        with pytest.raises(RequestError, match="would lose an image"):
            smolvlm.read(message_of(messages, [(64, 64)], truncation=truncation))


def test_a_chat_that_drops_its_oldest_turns_drops_their_images(smolvlm: Model):
    turn = [{"role": "user", "content": [IMAGE, text("This?")]}, {"role": "assistant", "content": [text("A cat.")]}]
    model = Model(smolvlm.directory, max_model_len=320)
    messages = [*turn, *turn, *turn, {"role": "user", "content": [text("Last"), IMAGE]}]
    sizes = [(64, 64), (64, 64), (64, 64), (1, 1)]
    user = model.read(message_of(messages, sizes, truncation=Truncation(310, drops_messages=True)))
    assert [span.image for span in user.spans] == [2, 3]
    assert user.spans[-1].digest == inputs(sizes)[3].encoding_digest()


def test_images_that_do_not_fit_the_context_are_refused(smolvlm: Model):
    model = Model(smolvlm.directory, max_model_len=50)
    with pytest.raises(RequestError, match=r"context length is 50 tokens, and the images alone have 56") as raised:
        model.read(message_of(*CHATS[1]))
    assert raised.value.info.code == "context_length_exceeded"


def test_limits_change_the_layout(smolvlm: Model):
    message = message_of(*CHATS[0])
    small = msgspec.structs.replace(message, images=inputs([(64, 64)], max_tokens=4))
    spans = [smolvlm.read(each).spans[0] for each in (message, small)]
    assert spans[1].length == 4 < spans[0].length
    assert spans[0].digest != spans[1].digest


def test_a_call_returns_the_ids_of_images(smolvlm: Model):
    chat = message_of(*CHATS[0])
    prompt = smolvlm.reader.text_of(EncodeMsg(1, None, chat=chat.chat, images=chat.images), smolvlm.templates.render)
    assert smolvlm.encoding.encode(prompt.text) == unpack_int32(smolvlm.read(chat).input_ids).tolist()


def test_other_prompts_may_have_no_images(smolvlm: Model):
    ids = TokenizeMsg(1, 0, None, pack_int32([1, 2]), SamplingParams(max_tokens=4), Stamps(), images=inputs([(9, 9)]))
    infill = text_message("a", [(9, 9)], infill=Infill("b", "suffix"))
    for message, words in ((ids, "token ids may have no images"), (infill, "to infill or to pool may have no images")):
        with pytest.raises(RequestError, match=words):
            smolvlm.read(message)
    blind = PromptReader(smolvlm.encoding, 1 << 20, 1000)
    with pytest.raises(RequestError, match="image input is not supported by this model"):
        blind.text_of(message_of(*CHATS[0]), partial(smolvlm.templates.render))
