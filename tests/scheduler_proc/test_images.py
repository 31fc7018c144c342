"""Chats with images have transformers' greedy tokens, however they are computed."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import transformers
from msgspec.structs import replace
from PIL import Image, ImageOps

from messages.columns import unpack_int32
from messages.ring.requests import UserMsg
from tests.runtime.images.references import picture
from tests.scheduler_proc.image_server import ImageServer, ReferenceModel, continued
from tests.vision_models import SAMPLES, make_vision_model

KINDS = ["idefics3", "qwen3_vl", "qwen3_5", "gemma4"]
"""Plain spans; positions with axes and more parts of rows; recurrent states; spans with attention both ways."""

FAMILIES = [*KINDS, *(name for name in SAMPLES if name not in (*KINDS, "lfm2_vl"))]
"""LFM2-VL has no processor without torchvision."""

IMAGE = {"type": "image"}
NUM_LONG = 64
SIZES = [(100, 60), (40, 150), (1, 1), (200, 3)]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def user(*parts: dict[str, str]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@dataclass
class Case:
    """A request, its images, and the output that it must have."""

    request: UserMsg
    images: list[Image.Image]
    output: list[int]


class Model:
    """A model of a family with its reference, and chats that have been checked against it."""

    def __init__(self, family: str, folder: Path):
        self.directory = make_vision_model(family, folder / "model")
        self.reference = ReferenceModel(self.directory, getattr(transformers, SAMPLES[family].architecture))
        self.server = self.serve(folder)
        first, third, dot, line = map(picture, SIZES)
        second = ImageOps.invert(first)
        turns = [user(IMAGE, text("This?")), {"role": "assistant", "content": [text("A cat.")]}]
        chats = [
            ([user(text("What is it?"), IMAGE)], [first]),
            ([user(text("What is it?"), IMAGE)], [second]),
            ([user(IMAGE, text("or"), IMAGE, text("?"))], [third, first]),
            ([*turns, user(text("And these?"), IMAGE, IMAGE)], [second, dot, line]),
            ([user(text("No image here."))], []),
        ]
        self.cases = [self.case(*chat) for chat in chats]

    def serve(self, folder: Path, **flags: Any) -> ImageServer:
        return ImageServer(self.directory, folder, **{"num_pages": 400, "dtype": "float32"} | flags)

    def case(self, messages: list[dict[str, Any]], images: list[Image.Image], **params: Any) -> Case:
        """Computes the request alone and checks it."""
        request = self.server.user_msg(messages, images, **params)
        self.server.start()
        (output,) = self.server.run([request]).values()
        self.reference.check(request, images, output)
        return Case(request, images, output)

    def check(self, server: ImageServer) -> None:
        """Asserts that all cases together have their outputs."""
        assert server.run([case.request for case in self.cases]) == {
            case.request.uid: case.output for case in self.cases
        }


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    model = Model(request.param, tmp_path_factory.mktemp(request.param))
    with closing(model.server):
        yield model


of_each_family = pytest.mark.parametrize("model", FAMILIES, indirect=True)
of_each_kind = pytest.mark.parametrize("model", KINDS, indirect=True)


@of_each_family
def test_the_output_depends_on_the_image(model: Model):
    one, other, *_ = model.cases
    assert one.output != other.output
    with pytest.raises(AssertionError, match="below the best"):
        model.reference.check(other.request, other.images, one.output)


@of_each_family
def test_together_then_from_the_cache(model: Model):
    model.server.start()
    model.check(model.server)
    num_encoded = model.server.num_encoded
    model.check(model.server)
    assert model.server.num_encoded == num_encoded
    assert model.server.scheduler.gauges()["prefix_hit_tokens"] > 0


@of_each_kind
def test_in_chunks_with_few_pages_and_drafts(model: Model, tmp_path: Path):
    """Long answers do not fit side by side, so one request is preempted; drafts come from the text."""
    images = [picture(SIZES[0]), picture(SIZES[0])]
    cases = [model.case([user(text("What is it?"), IMAGE)], [image], max_tokens=NUM_LONG) for image in images]
    span, num_tokens = cases[0].request.spans[0], len(unpack_int32(cases[0].request.input_ids))
    num_pages = 2 * (-(-num_tokens // 4)) - span.start // 4 + NUM_LONG // 4
    steps = {"max_num_batched_tokens": 24 if span.is_two_way else 7, "speculative": "ngram"}
    flags = {"block_size": 4, "max_model_len": num_tokens + NUM_LONG, "num_pages": num_pages}
    with closing(model.serve(tmp_path, **flags, **steps)) as server:
        assert server.run([case.request for case in cases]) == {case.request.uid: case.output for case in cases}
    assert server.scheduler.gauges()["preemptions"] > 0 or span.is_two_way  # whose window pages let one of them wait


@of_each_kind
@pytest.mark.parametrize("keeps_cache", [True, False])
def test_continued_in_mid_stream(model: Model, keeps_cache: bool):
    """Another attempt continues the output, at a scheduler with the cache or with nothing."""
    server = model.server
    server.start()
    cases = model.cases[:4]
    if keeps_cache:
        server.run([case.request for case in cases])
    requests = [continued(case.request, case.output[:3]) for case in cases]
    outputs = server.run(requests)
    assert list(outputs.values()) == [case.output[3:] for case in cases]


@of_each_kind
def test_the_next_turn_finds_the_images_of_the_last_one(model: Model):
    """Its prompt begins with the tokens and the images of the one before; a new image comes behind them."""
    server, case = model.server, model.cases[0]
    server.start()
    server.run([case.request])
    images = [*case.images, picture((50, 70))]
    messages = [
        user(text("What is it?"), IMAGE),
        {"role": "assistant", "content": [text("It")]},
        user(text("And this?"), IMAGE),
    ]
    num_encoded = server.num_encoded
    request = server.user_msg(messages, images)
    (output,) = server.run([request]).values()
    model.reference.check(request, images, output)
    assert server.num_encoded == num_encoded + 1
    if request.spans[0] == case.request.spans[0]:  # LLaVA-OneVision has fewer tokens for one of several images
        assert server.scheduler.gauges()["prefix_hit_tokens"] >= request.spans[0].end // 16 * 16


@of_each_kind
def test_equal_texts_with_other_images_share_nothing_of_them(model: Model):
    """The ids of the two prompts are the same."""
    server = model.server
    server.start()
    one, other = model.cases[:2]
    swapped = replace(one.request, images=other.request.images, spans=other.request.spans, uid=900)
    assert one.request.input_ids == other.request.input_ids
    server.run([one.request])
    assert server.run([swapped]) == {900: other.output}
