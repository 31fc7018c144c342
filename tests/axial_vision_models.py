"""Samples of models whose towers have rotary positions with two axes, for `vision_models.py`."""

from collections.abc import Mapping
from typing import Any

import transformers

from tests.vision_sample import CLIP, HALF, STEPS, Sample, Sizes, text_config, vision_config

MIN_TOKENS, MAX_TOKENS = 4, 64
"""The budget of an image, for processors that have one."""

QWEN_TOKENS = ("<|im_end|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' or 'image' in part or "
    "'image_url' in part %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL_TOKENS = ("</s>", "<s>", "[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
MISTRAL_TEMPLATE = (
    "<s>{% for message in messages %}{% if message.role == 'user' %}[INST]{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
    "{% elif part.type in ['image', 'image_url'] %}[IMG]{% endif %}{% endfor %}{% endif %}[/INST]{% else %}"
    "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content[0].text }}{% endif %}</s>"
    "{% endif %}{% endfor %}"
)
GEMMA4_TOKENS = ("<turn|>", "<bos>", "<|turn>", "<|image>", "<|image|>", "<image|>")
GEMMA4_TEMPLATE = (
    "<bos>{% for message in messages %}<|turn>{{ 'model' if message.role == 'assistant' else message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<|image|>{% endif %}{% endfor %}"
    "{% endif %}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


def _qwen_vision(sizes: Sizes) -> dict[str, Any]:
    fields = vision_config(sizes)
    return {
        "depth": fields["num_hidden_layers"],
        "num_heads": fields["num_attention_heads"],
        "hidden_size": fields["hidden_size"],
        "intermediate_size": fields["intermediate_size"],
        "patch_size": sizes["patch_size"],
        "spatial_merge_size": sizes["merge"],
        "out_hidden_size": sizes["hidden"],
    }


def _qwen_ids(ids: Mapping[str, int]) -> dict[str, int]:
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    return {f"{name}_token_id": ids[token] for name, token in names.items()}


def _qwen_processor(sizes: Sizes, is_old: bool = False) -> dict[str, Any]:
    cell = (sizes["patch_size"] * sizes["merge"]) ** 2
    least, most = MIN_TOKENS * cell, MAX_TOKENS * cell
    size = {"min_pixels": least, "max_pixels": most} if is_old else {}
    return {
        "image_processor_type": "Qwen2VLImageProcessor" if is_old else "Qwen2VLImageProcessorFast",
        **STEPS,
        **(CLIP if is_old else HALF),
        **(size or {"size": {"shortest_edge": least, "longest_edge": most}}),
        "resample": 3,
        "patch_size": sizes["patch_size"],
        "temporal_patch_size": 2,
        "merge_size": sizes["merge"],
    }


def _qwen2_5_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    text = text_config(sizes, ids)
    del text["head_dim"]
    mrope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    full = list(range(1, sizes["vision_layers"], 2))
    window = {"window_size": 2 * sizes["patch_size"] * sizes["merge"], "fullatt_block_indexes": full}
    return transformers.Qwen2_5_VLConfig(
        vision_config=_qwen_vision(sizes) | window,
        text_config={**text, "rope_parameters": mrope},
        **_qwen_ids(ids),
    )


def _qwen3_vision(sizes: Sizes) -> dict[str, Any]:
    return {**_qwen_vision(sizes), "num_position_embeddings": (sizes["image_size"] // sizes["patch_size"]) ** 2}


def _qwen3_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
    deepstack = {"deepstack_visual_indexes": list(range(sizes["vision_layers"] - 1))}
    return transformers.Qwen3VLConfig(
        vision_config=_qwen3_vision(sizes) | deepstack,
        text_config={**text_config(sizes, ids), "rope_parameters": rope},
        **_qwen_ids(ids),
    )


def _qwen3_5_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text = {
        **text_config(sizes, ids),
        "layer_types": ["full_attention" if layer % 2 else "linear_attention" for layer in range(sizes["layers"])],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {**rope, "partial_rotary_factor": 0.5},
    }
    return transformers.Qwen3_5Config(vision_config=_qwen3_vision(sizes), text_config=text, **_qwen_ids(ids))


def _mistral3_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    return transformers.Mistral3Config(
        vision_config={"model_type": "pixtral", "hidden_act": "silu", **vision_config(sizes)},
        text_config={"model_type": "mistral", "sliding_window": None, **text_config(sizes, ids)},
        image_token_index=ids["[IMG]"],
        spatial_merge_size=sizes["merge"],
        tie_word_embeddings=False,
    )


def _mistral3_processor(sizes: Sizes) -> dict[str, Any]:
    patch = sizes["patch_size"]
    return {
        "image_processor_type": "PixtralImageProcessor",
        **STEPS,
        **CLIP,
        "resample": 3,
        "patch_size": {"height": patch, "width": patch},
        "size": {"longest_edge": 4 * sizes["image_size"]},
    }


def _gemma4_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    fields = vision_config(sizes)
    heads = fields["num_attention_heads"]
    vision = {
        **fields,
        "num_key_value_heads": heads,
        "head_dim": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 1024,
        "use_clipped_linears": True,
        "standardize": True,
    }
    text = {
        **text_config(sizes, ids),
        "sliding_window": 16,
        "global_head_dim": 16,
        "layer_types": [*["sliding_attention"] * (sizes["layers"] - 1), "full_attention"],
        "hidden_size_per_layer_input": 8,
        "bos_token_id": ids["<bos>"],
    }
    text["vocab_size_per_layer_input"] = text["vocab_size"]
    return transformers.Gemma4Config(
        vision_config=vision,
        text_config=text,
        audio_config=None,
        boi_token_id=ids["<|image>"],
        eoi_token_id=ids["<image|>"],
        image_token_id=ids["<|image|>"],
    )


def _gemma4_processor(sizes: Sizes) -> dict[str, Any]:
    return {
        "image_processor_type": "Gemma4ImageProcessor",
        **STEPS,
        "do_normalize": False,
        "image_mean": [0.0] * 3,
        "image_std": [1.0] * 3,
        "resample": 3,
        "patch_size": sizes["patch_size"],
        "max_soft_tokens": 70,
        "pooling_kernel_size": 3,
    }


SAMPLES = {
    "qwen2_5_vl": Sample(
        architecture="Qwen2_5_VLForConditionalGeneration",
        make_config=_qwen2_5_config,
        processor=lambda sizes: _qwen_processor(sizes, is_old=True),
        tokens=QWEN_TOKENS,
        chat_template=QWEN_TEMPLATE,
        processor_class="Qwen2_5_VLProcessor",
    ),
    "qwen3_vl": Sample(
        architecture="Qwen3VLForConditionalGeneration",
        make_config=_qwen3_config,
        processor=_qwen_processor,
        tokens=QWEN_TOKENS,
        chat_template=QWEN_TEMPLATE,
        processor_class="Qwen3VLProcessor",
    ),
    "qwen3_5": Sample(
        architecture="Qwen3_5ForConditionalGeneration",
        make_config=_qwen3_5_config,
        processor=_qwen_processor,
        tokens=QWEN_TOKENS,
        chat_template=QWEN_TEMPLATE,
        processor_class="Qwen3VLProcessor",
    ),
    "pixtral": Sample(
        architecture="Mistral3ForConditionalGeneration",
        make_config=_mistral3_config,
        processor=_mistral3_processor,
        tokens=MISTRAL_TOKENS,
        chat_template=MISTRAL_TEMPLATE,
        processor_class="PixtralProcessor",
        processor_fields=lambda sizes: {
            "patch_size": sizes["patch_size"],
            "spatial_merge_size": sizes["merge"],
            "image_token": "[IMG]",
            "image_break_token": "[IMG_BREAK]",
            "image_end_token": "[IMG_END]",
        },
    ),
    "gemma4": Sample(
        architecture="Gemma4ForConditionalGeneration",
        make_config=_gemma4_config,
        processor=_gemma4_processor,
        tokens=GEMMA4_TOKENS,
        chat_template=GEMMA4_TEMPLATE,
        processor_class="Gemma4Processor",
        processor_fields=lambda _: {"image_seq_length": 70},
    ),
}
