"""The tokenizer, an encoder and the scheduler of a model in this process: chats with images in, token ids out."""

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from PIL import Image

from encoder_proc.image_encoder import open_encoder
from messages.columns import pack_int32, unpack_int32
from messages.config.server import Config
from messages.ring.encodings import EncodeImage, EncoderStarted, EngineStarted, ForgetImage, ImageEncoded, OpenAsks
from messages.ring.images import ImageInput
from messages.ring.requests import ChatPrompt, SamplingParams, Stamps, TokenizeMsg, UserMsg
from runtime.chat_files import read_chat_files
from runtime.images.registry import read_rule
from runtime.row_file import RowFile
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from tests.checkpoints import make_config
from tests.runtime.images.references import Reference, facts_of
from tests.scheduler_proc.clients import Inbox
from tests.vision_models import NUM_TEXT_TOKENS
from tokenizer_proc.chat import ChatTemplates
from tokenizer_proc.encoding import load_encoding
from tokenizer_proc.process import TextServer

CACHE_BYTES = 8 << 20

MARGIN = 1e-3
"""Logits that are closer than this are equal except for rounding."""

TEXT_IDS = pack_int32(range(NUM_TEXT_TOKENS))
"""An output of placeholders would be taken for images by transformers."""


class ImageServer:
    """One model. Each image is encoded between two steps, when the scheduler has asked for it."""

    engine = 1

    def __init__(self, model_dir: Path, folder: Path, **flags: Any):
        self.images = model_dir / "images"
        self.images.mkdir(exist_ok=True)
        config = make_config(model_dir, **{"block_size": 16, "num_pages": 400, "max_num_batched_tokens": 1024} | flags)
        facts = replace(config.facts, vision=facts_of(model_dir), has_chat_template=True)
        self.config: Config = replace(config, facts=facts)
        self._tokenizer = make_tokenizer(self.config)
        self._runner = load_runner(self.config, lambda *_: None)
        assert self._runner.span_rows is not None
        self._rows = folder / "rows"
        self._rows.touch()
        self._runner.span_rows.open_file(self._rows, CACHE_BYTES)
        self._encode = open_encoder(self.config, self.images, lambda *_: None)
        self._asked: list[EncodeImage] = []
        self._num_requests = 0
        self.num_encoded = 0
        self.start()

    def start(self) -> None:
        """Starts a scheduler without a request, as after the death of one whose cache is lost."""
        self.scheduler: Scheduler = make_scheduler(self.config, self._runner, encoders=self)
        self.stepper = Stepper(self.scheduler, self._runner, StepTimes())
        self.scheduler.receive(EncoderStarted("encoder"))

    def close(self) -> None:
        self._encode.close()

    def send(self, encoder: str, message: EncodeImage | ForgetImage | OpenAsks | EngineStarted) -> None:
        """Takes what the scheduler asks its encoders for."""
        assert encoder == "encoder"
        if isinstance(message, EncodeImage):
            self._asked.append(message)

    def look(self) -> None:
        """It loses nothing and never leaves."""

    def user_msg(self, messages: list[dict[str, Any]], images: Sequence[Image.Image], **params: Any) -> UserMsg:
        """Returns the request as the tokenizer sends it; `messages` have a part `image` for each image."""
        self._num_requests += 1
        inputs = tuple(self._input(image, index) for index, image in enumerate(images))
        fixed = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "allowed_token_ids": TEXT_IDS}
        sampling = SamplingParams(**fixed | params)
        chat = ChatPrompt(json.dumps(messages).encode())
        message = TokenizeMsg(self._num_requests, 0, None, b"", sampling, Stamps(), chat=chat, images=inputs)
        (answer,) = self._tokenizer.answer(message)
        assert isinstance(answer, UserMsg), answer
        return answer

    def _input(self, image: Image.Image, index: int) -> ImageInput:
        file = io.BytesIO()
        image.save(file, "PNG")
        digest = blake2b(file.getvalue(), digest_size=16).digest()
        (self.images / digest.hex()).write_bytes(file.getvalue())
        return ImageInput(digest, *image.size, param=f"messages[0].content[{index}]")

    def run(self, requests: Sequence[UserMsg], max_steps: int = 10_000) -> dict[int, list[int]]:
        """Runs the requests, at most `max_steps` steps, and returns the output ids of each."""
        inbox = Inbox()
        for request in requests:
            self.scheduler.receive(request)
        for _ in range(max_steps):
            self._answer()
            batch = self.stepper.plan()
            inbox.take(self.scheduler.pop_replies())
            if batch is None and not self.stepper.has_step:
                if self.scheduler.is_idle:
                    break
                assert self._asked, "requests wait for nothing"
                continue
            self.stepper.step(batch, 0.0)
            inbox.take(self.scheduler.pop_replies())
        errors = [row.error for row in inbox.finished.values() if row.error]
        assert not errors, errors
        return {request.uid: inbox.tokens.get((request.uid, request.attempt), []) for request in requests}

    def _answer(self) -> None:
        for message in self._asked:
            rows = self._encode(message.image, message.num_images)
            places = unpack_int32(message.places)
            checksum = RowFile(self._rows).write(message.ask, places, rows)
            assert checksum is not None
            self.num_encoded += 1
            self.scheduler.receive(ImageEncoded(message.ask, len(places), checksum, 0.0))
        self._asked.clear()


def make_tokenizer(config: Config) -> TextServer:
    """Returns the model's tokenizer, which renders chats in this process."""
    facts = config.facts
    assert facts.vision is not None
    rule, files = read_rule(facts.vision), read_chat_files(facts.tokenizer_dir)
    templates = ChatTemplates(dataclasses.replace(files, image_marker=rule.marker, image_part=rule.part))
    sizes = facts.vocab_size, facts.max_model_len
    return TextServer(
        load_encoding(facts.tokenizer_dir), templates, *sizes, named=files.special_tokens, vision=facts.vision
    )


def continued(request: UserMsg, output_ids: Sequence[int]) -> UserMsg:
    """Returns the next attempt of a request whose client has these tokens."""
    return replace(request, attempt=request.attempt + 1, output_ids=pack_int32(output_ids))


class ReferenceModel:
    """The same model in transformers, with its processor; float32 and eager attention."""

    def __init__(self, model_dir: Path, architecture: Any):
        self._processor = Reference(model_dir)
        self._processor.images.do_rescale = self._processor.images.do_normalize = True
        self.model = architecture.from_pretrained(model_dir, attn_implementation="eager", dtype=torch.float32).eval()
        self._known: dict[tuple[int, ...], Any] = {}

    def logits(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Returns the logits of all positions of a text with the placeholders of these images."""
        inputs = self._processor.process(images) if images else {}
        tensors = {name: torch.as_tensor(np.asarray(value)) for name, value in dict(inputs).items() if _is_used(name)}
        tensors = {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}
        ids_T = torch.tensor([list(ids)])
        with torch.no_grad():
            return self.model(input_ids=ids_T, **tensors, **self._types(ids_T)).logits[0]

    def _types(self, ids_T: torch.Tensor) -> Mapping[str, torch.Tensor]:
        kind = self._processor.kind
        if kind in ("gemma3", "gemma4", "qwen2_5_vl", "qwen3_vl", "qwen3_5"):
            config = self.model.config
            token = getattr(config, "image_token_id", None) or config.image_token_index
            types = (ids_T == token).int()
            return {"token_type_ids": types} if kind == "gemma3" else {"mm_token_type_ids": types}
        return {}

    def check(self, request: UserMsg, images: Sequence[Image.Image], output: Sequence[int]) -> None:
        """Asserts that each output token is the best one, or nearly."""
        prompt = unpack_int32(request.input_ids)
        logits_TV = self.logits([*prompt, *output], images)[len(prompt) - 1 : -1, :NUM_TEXT_TOKENS]
        for index, token in enumerate(output):
            gap = float(logits_TV[index].max() - logits_TV[index, token])
            assert gap < MARGIN, f"token {index} is {token}, {gap:.4f} below the best"


def _is_used(name: str) -> bool:
    return name not in ("rows", "cols", "num_patches_per_image", "num_crops", "num_soft_tokens_per_image")
