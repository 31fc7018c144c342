"""The layouts of small models that answer questions about pictures: their classes, what rows show, and their files.

Shape legend: V views, P patches, N rows of all views, E embedding size, B chats, L tokens of the longest.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tools.drawn_pictures import SIDE

TILE, PATCH = 64, 8
GRID = TILE // PATCH
MERGED = GRID // SIDE
"""A picture is one view of TILE x TILE pixels, which becomes SIDE x SIDE rows: one for each place."""
NUM_ROWS = SIDE**2
WIDTH, NUM_LAYERS, NUM_HEADS = 96, 3, 6
"""The tower's sizes; its MLP is three times as wide."""
STEPS = {f"do_{step}": True for step in ("convert_rgb", "resize", "rescale", "normalize")}
HALF = {"rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


class PictureLayout(Protocol):
    """One family's layout. `tokens` are its special tokens, `part` stands for an image in a template."""

    name: str
    tokens: tuple[str, ...]
    placeholder: str
    part: str
    shown: str
    """What takes the place of `part`, as its processor writes it."""
    contents: tuple[tuple[int, ...], ...]
    """What each part of a row shows: place (0), colour (1) or name (2)."""

    def make_model(self, text: Mapping[str, Any], ids: Mapping[str, int]) -> Any:
        """Returns a random model; `ids` are those of `tokens`, `text` the fields of the decoder."""
        ...

    def view(self, picture: Image.Image) -> Image.Image:
        """Returns a picture's view as the processor makes it."""
        ...

    def encode(self, model: Any, pixels_VCHW: Tensor) -> list[Tensor]:
        """Returns the parts of the rows, each [N, E]."""
        ...

    def outputs(self, parts: Sequence[Tensor]) -> dict[str, Any]:
        """Returns what the model takes for the tower's outputs."""
        ...

    def types(self, ids_BL: Tensor, placeholder: int) -> dict[str, Any]:
        """Returns the model's other arguments for these tokens."""
        ...

    def last_weights(self, model: Any) -> list[list[torch.nn.Parameter]]:
        """Returns the parameters that make each part of the rows, to which it is proportional."""
        ...

    def preprocessor(self) -> dict[str, Any]: ...

    def processor(self) -> dict[str, Any]: ...


class Idefics3:
    name = "idefics3"
    placeholder = part = "<image>"
    tokens = (
        *("<fake_token_around_image>", placeholder, "<global-img>"),
        *(f"<row_{line}_col_{column}>" for line in range(1, 7) for column in range(1, 7)),
    )
    shown = f"{tokens[0]}{tokens[2]}{placeholder * NUM_ROWS}{tokens[0]}"
    contents = ((0, 1, 2),)

    def make_model(self, text: Mapping[str, Any], ids: Mapping[str, int]) -> Any:
        vision = {
            "hidden_size": WIDTH,
            "num_hidden_layers": NUM_LAYERS,
            "num_attention_heads": NUM_HEADS,
            "intermediate_size": 3 * WIDTH,
        }
        config = transformers.Idefics3Config(
            vision_config={**vision, "image_size": TILE, "patch_size": PATCH, "initializer_range": 0.06},
            text_config=transformers.LlamaConfig(**text),
            image_token_id=ids[self.placeholder],
            scale_factor=MERGED,
            tie_word_embeddings=True,
            pad_token_id=text["pad_token_id"],
            initializer_range=0.06,
        )
        return transformers.Idefics3ForConditionalGeneration(config)

    def view(self, picture: Image.Image) -> Image.Image:
        scale = TILE / max(picture.size)
        width, height = (max(1, int(side * scale)) for side in picture.size)
        size = width + width % 2, height + height % 2
        return picture.resize(size, Image.Resampling.LANCZOS).resize((TILE, TILE), Image.Resampling.LANCZOS)

    def encode(self, model: Any, pixels_VCHW: Tensor) -> list[Tensor]:
        hidden_VPE = model.model.vision_model(pixel_values=pixels_VCHW).last_hidden_state
        return [model.model.connector(hidden_VPE).flatten(0, 1)]

    def outputs(self, parts: Sequence[Tensor]) -> dict[str, Any]:
        return {"image": BaseModelOutputWithPooling(pooler_output=parts[0])}

    def types(self, ids_BL: Tensor, placeholder: int) -> dict[str, Any]:
        return {}

    def last_weights(self, model: Any) -> list[list[torch.nn.Parameter]]:
        return [[model.model.connector.modality_projection.proj.weight]]

    def preprocessor(self) -> dict[str, Any]:
        return {
            "image_processor_type": "Idefics3ImageProcessor",
            **STEPS,
            **HALF,
            "do_pad": True,
            "do_image_splitting": True,
            "resample": 1,
            "size": {"longest_edge": TILE},
            "max_image_size": {"longest_edge": TILE},
            "processor_class": "Idefics3Processor",
        }

    def processor(self) -> dict[str, Any]:
        return {"image_seq_len": NUM_ROWS, "processor_class": "Idefics3Processor"}


LAYOUTS: dict[str, PictureLayout] = {layout.name: layout for layout in (Idefics3(),)}
