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
    name_offset: int
    """Which place's name a row shows: 0, its own; 1, that of the place before it."""
    scales_embedding: bool
    """True if the decoder multiplies embeddings of tokens, but not rows, by the root of their size."""

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
    name_offset, scales_embedding = 0, False

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


class Qwen3Vl:
    """The name of a thing is only in the deepstack part of its row."""

    name = "qwen3-vl"
    placeholder = "<|image_pad|>"
    part = f"<|vision_start|>{placeholder}<|vision_end|>"
    tokens = ("<|vision_start|>", "<|vision_end|>", placeholder, "<|video_pad|>")
    shown = f"<|vision_start|>{placeholder * NUM_ROWS}<|vision_end|>"
    contents = ((0, 1), (2,))
    name_offset, scales_embedding = 0, False

    def make_model(self, text: Mapping[str, Any], ids: Mapping[str, int]) -> Any:
        head_dim = text["hidden_size"] // text["num_attention_heads"]
        half, quarter = head_dim // 2, head_dim // 8
        rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True}
        sections = [half - 2 * quarter, quarter, quarter]
        vision = {
            "depth": NUM_LAYERS,
            "num_heads": NUM_HEADS,
            "hidden_size": WIDTH,
            "intermediate_size": 3 * WIDTH,
            "patch_size": PATCH,
            "spatial_merge_size": MERGED,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": GRID**2,
            "deepstack_visual_indexes": [NUM_LAYERS - 2],
            "initializer_range": 0.06,
        }
        config = transformers.Qwen3VLConfig(
            vision_config=vision,
            text_config={**text, "head_dim": head_dim, "rope_parameters": {**rope, "mrope_section": sections}},
            image_token_id=ids[self.placeholder],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
            tie_word_embeddings=True,
        )
        return transformers.Qwen3VLForConditionalGeneration(config)

    def view(self, picture: Image.Image) -> Image.Image:
        return picture.resize((TILE, TILE), Image.Resampling.BICUBIC)

    def encode(self, model: Any, pixels_VCHW: Tensor) -> list[Tensor]:
        squares = pixels_VCHW.unflatten(3, (SIDE, MERGED, PATCH)).unflatten(2, (SIDE, MERGED, PATCH))
        ordered = squares.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(0, 4)[:, :, None].expand(-1, -1, 2, -1, -1)
        found = model.model.visual(ordered.flatten(1), grid_thw=_grids(len(pixels_VCHW)))
        return [found.pooler_output, *found.deepstack_features]

    def outputs(self, parts: Sequence[Tensor]) -> dict[str, Any]:
        found = BaseModelOutputWithPooling(pooler_output=[parts[0]])
        found.deepstack_features = [[part] for part in parts[1:]]
        return {"image": found}

    def types(self, ids_BL: Tensor, placeholder: int) -> dict[str, Any]:
        types_BL = (ids_BL == placeholder).int()
        return {"mm_token_type_ids": types_BL, "image_grid_thw": _grids(int(types_BL.sum()) // NUM_ROWS)}

    def last_weights(self, model: Any) -> list[list[torch.nn.Parameter]]:
        tower = model.model.visual
        return [list(merger.linear_fc2.parameters()) for merger in (tower.merger, *tower.deepstack_merger_list)]

    def preprocessor(self) -> dict[str, Any]:
        """Pictures are nearly square, so that the limits make every one of them `TILE` x `TILE`."""
        return {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            **STEPS,
            **HALF,
            "size": {"shortest_edge": TILE**2, "longest_edge": round(1.3 * TILE**2)},
            "resample": 3,
            "patch_size": PATCH,
            "temporal_patch_size": 2,
            "merge_size": MERGED,
            "processor_class": "Qwen3VLProcessor",
        }

    def processor(self) -> dict[str, Any]:
        return {"processor_class": "Qwen3VLProcessor"}


class Gemma3:
    """The name of a thing is in the row after it, so that rows are understood only together, in both directions."""

    name = "gemma3"
    placeholder = "<image_soft_token>"
    part = "<start_of_image>"
    tokens = (part, "<end_of_image>", placeholder)
    shown = f"\n\n{part}{placeholder * NUM_ROWS}<end_of_image>\n\n"
    contents = ((0, 1, 2),)
    name_offset, scales_embedding = 1, True

    def make_model(self, text: Mapping[str, Any], ids: Mapping[str, int]) -> Any:
        head_dim = text["hidden_size"] // text["num_attention_heads"]
        vision = {
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
            "hidden_size": WIDTH,
            "num_hidden_layers": NUM_LAYERS,
            "num_attention_heads": NUM_HEADS,
            "intermediate_size": 3 * WIDTH,
            "image_size": TILE,
            "patch_size": PATCH,
            "initializer_range": 0.06,
        }
        config = transformers.Gemma3Config(
            vision_config=vision,
            text_config={**text, "head_dim": head_dim, "query_pre_attn_scalar": head_dim},
            mm_tokens_per_image=NUM_ROWS,
            image_token_id=ids[self.placeholder],
            boi_token_index=ids[self.part],
            eoi_token_index=ids["<end_of_image>"],
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
        torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.06)
        return model

    def view(self, picture: Image.Image) -> Image.Image:
        return picture.resize((TILE, TILE), Image.Resampling.BILINEAR)

    def encode(self, model: Any, pixels_VCHW: Tensor) -> list[Tensor]:
        return [model.model.get_image_features(pixels_VCHW).pooler_output.flatten(0, 1)]

    def outputs(self, parts: Sequence[Tensor]) -> dict[str, Any]:
        return {"image": BaseModelOutputWithPooling(pooler_output=parts[0].unflatten(0, (-1, NUM_ROWS)))}

    def types(self, ids_BL: Tensor, placeholder: int) -> dict[str, Any]:
        return {"token_type_ids": (ids_BL == placeholder).int()}

    def last_weights(self, model: Any) -> list[list[torch.nn.Parameter]]:
        return [[model.model.multi_modal_projector.mm_input_projection_weight]]

    def preprocessor(self) -> dict[str, Any]:
        return {
            "image_processor_type": "Gemma3ImageProcessor",
            **STEPS,
            **HALF,
            "size": {"height": TILE, "width": TILE},
            "resample": 2,
            "do_pan_and_scan": None,
            "processor_class": "Gemma3Processor",
        }

    def processor(self) -> dict[str, Any]:
        return {"image_seq_length": NUM_ROWS, "processor_class": "Gemma3Processor"}


def _grids(num_views: int) -> Tensor:
    return torch.tensor([[1, GRID, GRID]] * num_views)


LAYOUTS: dict[str, PictureLayout] = {layout.name: layout for layout in (Idefics3(), Qwen3Vl(), Gemma3())}
