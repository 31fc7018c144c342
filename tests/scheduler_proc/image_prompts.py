"""Models of images and text, prompts with images whose rows are random, and what transformers' models make of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from messages.ring.requests import SamplingParams
from messages.ring.spans import ALL_POSITIONS, DIGEST_BYTES, PromptSpan
from scheduler_proc.offline import OfflineEngine, Output
from tests.checkpoints import VOCAB_SIZE

IMAGE_ID, MARK_ID = 7, 9
NUM_TOKENS = 10
HIDDEN = 64
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ENCODER: dict[str, Any] = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 14}
ENCODER |= {"out_hidden_size": HIDDEN, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1, 2]}
SIGLIP: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
AXES = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 20.0}
HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "head_dim": 24,
    "rope_parameters": {**AXES, "mrope_interleaved": True, "partial_rotary_factor": 0.5, "mrope_section": [2, 2, 2]},
}

Model = Any
"""A model of transformers."""


@dataclass(frozen=True)
class Image:
    """An image of lines and columns of tokens, whose rows follow from `content`.

    With a `mark`, each line but the last ends with a token that has no row, as in Pixtral.
    """

    num_lines: int
    num_columns: int
    content: int
    has_marks: bool = False

    def rows(self, size: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.content)
        return torch.randn((self.num_lines * self.num_columns, size), generator=generator)

    @property
    def ids(self) -> list[int]:
        line = [IMAGE_ID] * self.num_columns + [MARK_ID] * self.has_marks
        return (line * self.num_lines)[: None if not self.has_marks else -1]


class ImagePrompt:
    """Numbers of text tokens, and images."""

    def __init__(self, *parts: int | Image, has_axes: bool = False, is_two_way: bool = False):
        self.ids: list[int] = []
        self.spans: list[PromptSpan] = []
        self.images = [part for part in parts if isinstance(part, Image)]
        for part in parts:
            if isinstance(part, Image):
                digest = bytes([part.content, part.num_lines]) * (DIGEST_BYTES // 2)
                span = PromptSpan(len(self.ids), len(part.ids), digest, "image", len(self.spans), is_two_way=is_two_way)
                if has_axes:
                    span = replace(span, num_lines=part.num_lines, num_columns=part.num_columns)
                self.spans.append(replace(span, placeholder=IMAGE_ID if part.has_marks else ALL_POSITIONS))
                self.ids += part.ids
            else:
                start = len(self.ids)
                self.ids += [10 + (11 * position + 3) % 300 for position in range(start, start + part)]


Forward = Callable[[Model, list[int], ImagePrompt], torch.Tensor]
"""Returns the logits after these ids, which begin with the prompt's."""


def expect(model: Model, prompt: ImagePrompt, forward: Forward) -> list[int]:
    """Returns the tokens that transformers' model generates."""
    ids = prompt.ids[:]
    with torch.inference_mode():
        for _ in range(NUM_TOKENS):
            ids.append(int(forward(model, ids, prompt).argmax()))
    return ids[len(prompt.ids) :]


def embed(model: Model, ids: list[int], prompt: ImagePrompt) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the ids' embeddings, the rows of images with all their parts, and which tokens have them."""
    ids_T = torch.tensor(ids)
    embedded_TE, is_image_T = model.get_input_embeddings()(ids_T).clone(), torch.zeros(len(ids), dtype=torch.bool)
    for span in prompt.spans:
        is_image_T[span.start : span.end] = ids_T[span.start : span.end] == IMAGE_ID
    rows = [image.rows(row_size(model)) for image in prompt.images]
    rows_NR = torch.cat(rows) if rows else embedded_TE[:0]
    embedded_TE[is_image_T] = rows_NR[:, :HIDDEN]
    return embedded_TE[None], rows_NR, is_image_T


def row_size(model: Model) -> int:
    taps = getattr(getattr(model.config, "vision_config", None), "deepstack_visual_indexes", ())
    return HIDDEN * (1 + (len(taps) if "qwen3_vl" in model.config.model_type else 0))


def forward_plain(model: Model, ids: list[int], prompt: ImagePrompt) -> torch.Tensor:
    embedded, _, _ = embed(model, ids, prompt)
    return model(inputs_embeds=embedded, use_cache=False).logits[0, -1]


def forward_axes(model: Model, ids: list[int], prompt: ImagePrompt) -> torch.Tensor:
    embedded, rows_NR, is_image_T = embed(model, ids, prompt)
    merged = model.config.vision_config.spatial_merge_size
    grids = torch.tensor([[1, merged * image.num_lines, merged * image.num_columns] for image in prompt.images])
    types = is_image_T.int()[None]
    positions, _ = model.model.get_rope_index(torch.tensor([ids]), types, grids if prompt.images else None)
    others: dict[str, Any] = {}
    if rows_NR.shape[1] > HIDDEN:
        others["visual_pos_masks"] = is_image_T[None]
        others["deepstack_visual_embeds"] = list(rows_NR[:, HIDDEN:].split(HIDDEN, dim=1))
    hidden = model.model.language_model(inputs_embeds=embedded, position_ids=positions, use_cache=False, **others)
    return model.lm_head(hidden.last_hidden_state[0, -1])


def forward_two_way(model: Model, ids: list[int], prompt: ImagePrompt) -> torch.Tensor:
    embedded, _, is_image_T = embed(model, ids, prompt)
    types, text, others = is_image_T.int()[None], model.config.get_text_config(), dict[str, Any]()
    if getattr(text, "hidden_size_per_layer_input", 0):
        text_ids = torch.tensor([ids]).masked_fill(is_image_T, text.pad_token_id)
        others["per_layer_inputs"] = model.model.language_model.get_per_layer_inputs(text_ids)
    name = "mm_token_type_ids" if model.config.model_type == "gemma4" else "token_type_ids"
    return model(inputs_embeds=embedded, use_cache=False, **{name: types}, **others).logits[0, -1]


def build(path: Path, config: transformers.PreTrainedConfig) -> Model:
    """Writes a random checkpoint and returns its float32 model."""
    kind = transformers.AutoModelForImageTextToText
    model: Any = kind.from_config(config, dtype=torch.float32, attn_implementation="eager")
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2, generator=generator)
    model.eval().save_pretrained(path)
    return model


def qwen(name: str, **text: Any) -> Callable[[], transformers.PreTrainedConfig]:
    kind = getattr(transformers, f"{name}Config")
    return lambda: kind(text_config={**TEXT, **text}, vision_config=ENCODER, image_token_id=IMAGE_ID)


def gemma3() -> transformers.PreTrainedConfig:
    text = {**TEXT, "head_dim": 24, "sliding_window": 9, "sliding_window_pattern": 2, "query_pre_attn_scalar": 24}
    return transformers.Gemma3Config(text_config=text, vision_config=SIGLIP, mm_tokens_per_image=4)


def gemma4(**text: Any) -> Callable[[], transformers.PreTrainedConfig]:
    own = {"head_dim": 16, "global_head_dim": 32, "sliding_window": 9, "pad_token_id": 3, "vocab_size": VOCAB_SIZE}
    own |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": VOCAB_SIZE}
    encoder = {**SIGLIP, "num_key_value_heads": 2, "head_dim": 16}
    own |= {"tie_word_embeddings": False}
    others: dict[str, Any] = {"image_token_id": IMAGE_ID, "video_token_id": 5, "audio_token_id": 6}
    others |= {"tie_word_embeddings": False, "vision_config": encoder}
    return lambda: transformers.Gemma4Config(text_config={**TEXT, **own, **text}, **others)


def serve(engine: OfflineEngine, prompts: Sequence[ImagePrompt], size: int) -> list[Output]:
    """Returns the outputs of the prompts, which run together; the rows of their images have `size` numbers."""
    for prompt in prompts:
        for span, image in zip(prompt.spans, prompt.images, strict=True):
            assert engine._runner.span_rows is not None
            engine._runner.span_rows.place(span.digest, image.rows(size))
    params = [SamplingParams(NUM_TOKENS, temperature=0.0, ignore_eos=True)] * len(prompts)
    spans, scheduler = iter([tuple(prompt.spans) for prompt in prompts]), engine._scheduler
    with pytest.MonkeyPatch.context() as patch:
        receive = scheduler.receive
        patch.setattr(scheduler, "receive", lambda message: receive(replace(message, spans=next(spans))))
        return engine.generate([prompt.ids for prompt in prompts], params)


def tokens_of(outputs: list[Output]) -> list[list[int]]:
    assert all(output.error is None for output in outputs), outputs
    return [output.token_ids for output in outputs]
