"""Small random checkpoints of models that read images, as their families publish them, for all tests of images.

They are saved by transformers' own classes, with the processor's files, a byte-level tokenizer and a chat template.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests import axial_vision_models
from tests.tiny_llama import write_tokenizer
from tests.vision_sample import CLIP, HALF, IMAGENET, NUM_TEXT_TOKENS, STEPS, Sample, Sizes, text_config, vision_config

SIZES = {
    "hidden": 64,
    "layers": 2,
    "vision_hidden": 64,
    "vision_layers": 2,
    "image_size": 32,
    "patch_size": 8,
    "merge": 2,
}
"""The default of each size; `hidden` and `layers` are the decoder's, `merge` is the side of what becomes one token."""


def make_vision_model(family: str, directory: Path, seed: int = 5, **sizes: int) -> Path:
    """Writes a model of the family into the new directory, and returns it."""
    sample, all_sizes = SAMPLES[family], SIZES | sizes
    assert all_sizes.keys() == SIZES.keys(), f"sizes are {', '.join(SIZES)}"
    directory.mkdir(parents=True, exist_ok=True)
    ids = {token: NUM_TEXT_TOKENS + number for number, token in enumerate(sample.tokens)}
    torch.manual_seed(seed)
    model = getattr(transformers, sample.architecture)(sample.make_config(all_sizes, ids))
    _randomize(model)
    model.save_pretrained(directory)
    _write_tokenizer(directory, sample, ids)
    preprocessor = sample.processor(all_sizes) | {"processor_class": sample.processor_class}
    _write(directory / "preprocessor_config.json", preprocessor)
    processor = sample.processor_fields(all_sizes) | {"processor_class": sample.processor_class}
    _write(directory / "processor_config.json", processor)
    (directory / "chat_template.jinja").write_text(sample.chat_template, encoding="utf-8")
    return directory


def _randomize(model: torch.nn.Module) -> None:
    """Sets all parameters, and Gemma 4's limits and scales, to random values large enough that each matters."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(float("norm" in name and name.endswith("weight")), 0.2 if value.dim() == 1 else 0.15)
        for name, value in model.named_buffers():
            if name.endswith(("put_min", "put_max")):
                value.uniform_(0.5, 2.5).mul_(-1 if name.endswith("min") else 1)
            elif name.endswith(("std_bias", "std_scale")):
                value.normal_(float(name.endswith("scale")), 0.2)


def _write_tokenizer(directory: Path, sample: Sample, ids: Mapping[str, int]) -> None:
    write_tokenizer(directory, NUM_TEXT_TOKENS)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] = [{"id": number, "content": token, **flags} for token, number in ids.items()]
    _write(path, tokenizer)
    _write(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "eos_token": sample.tokens[0],
            "pad_token": sample.tokens[0],
            "processor_class": sample.processor_class,
        },
    )


def _write(path: Path, fields: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2), encoding="utf-8")


def _idefics3_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    return transformers.Idefics3Config(
        vision_config=vision_config(sizes),
        text_config={"model_type": "llama", "tie_word_embeddings": True, **text_config(sizes, ids)},
        scale_factor=sizes["merge"],
        image_token_id=ids["<image>"],
        tie_word_embeddings=True,
    )


def _idefics3_processor(sizes: Sizes) -> dict[str, Any]:
    return {
        "image_processor_type": "Idefics3ImageProcessor",
        **STEPS,
        **HALF,
        "do_image_splitting": True,
        "do_pad": True,
        "resample": 1,
        "max_image_size": {"longest_edge": sizes["image_size"]},
        "size": {"longest_edge": 4 * sizes["image_size"]},
    }


def _num_merged(sizes: Sizes) -> int:
    """Returns the tokens of a whole tile."""
    return (sizes["image_size"] // sizes["patch_size"] // sizes["merge"]) ** 2


def _gemma3_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    return transformers.Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **vision_config(sizes)},
        text_config={"sliding_window": 16, "query_pre_attn_scalar": 16, **text_config(sizes, ids)},
        mm_tokens_per_image=_num_merged(sizes),
        image_token_id=ids["<image_soft_token>"],
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
    )


def _stretched(processor_type: str, **fields: Any) -> Callable[[Sizes], dict[str, Any]]:
    """Returns the fields of a processor that makes every image as large as the tower's view."""

    def make(sizes: Sizes) -> dict[str, Any]:
        size = {"height": sizes["image_size"], "width": sizes["image_size"]}
        return {"image_processor_type": processor_type, **STEPS, **HALF, "size": size} | fields

    return make


def _internvl_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    side, patch = sizes["image_size"], sizes["patch_size"]
    vision = {"image_size": [side, side], "patch_size": [patch, patch], "attention_bias": True, "hidden_act": "gelu"}
    return transformers.InternVLConfig(
        vision_config={**vision_config(sizes), **vision, "layer_scale_init_value": 0.5},
        text_config={"model_type": "qwen2", **text_config(sizes, ids)},
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=_num_merged(sizes),
        downsample_ratio=1 / sizes["merge"],
    )


def _llava_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    return transformers.LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "hidden_act": "quick_gelu", **vision_config(sizes)},
        text_config={"model_type": "llama", **text_config(sizes, ids)},
        image_token_index=ids["<image>"],
        image_seq_length=(sizes["image_size"] // sizes["patch_size"]) ** 2,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )


def _pinpoints(sizes: Sizes) -> list[list[int]]:
    side = sizes["image_size"]
    return [[side * lines, side * columns] for lines in range(1, 5) for columns in range(1, 5)]


def _llava_onevision_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    return transformers.LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **vision_config(sizes)},
        text_config={"model_type": "qwen2", **text_config(sizes, ids)},
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        image_grid_pinpoints=_pinpoints(sizes),
        vision_aspect_ratio="anyres_max_9",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def _llava_next_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    """Granite Vision's: several layers of SigLIP."""
    return transformers.LlavaNextConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **vision_config(sizes)},
        text_config={"model_type": "granite", **text_config(sizes, ids)},
        image_token_index=ids["<image>"],
        image_grid_pinpoints=_pinpoints(sizes),
        vision_feature_layer=[-2, -1],
        vision_feature_select_strategy="full",
    )


def _anyres(processor_type: str, **fields: Any) -> Callable[[Sizes], dict[str, Any]]:
    stretched = _stretched(processor_type, do_pad=True, resample=3, **fields)
    return lambda sizes: stretched(sizes) | {"image_grid_pinpoints": _pinpoints(sizes)}


def _lfm2_vl_config(sizes: Sizes, ids: Mapping[str, int]) -> Any:
    side = sizes["image_size"] // sizes["patch_size"]
    layers = ["conv", "full_attention"] * sizes["layers"]
    return transformers.Lfm2VlConfig(
        vision_config={
            "model_type": "siglip2_vision_model",
            "vision_use_head": False,
            "num_patches": side**2,
            **vision_config(sizes),
        },
        text_config={
            "model_type": "lfm2",
            **text_config(sizes, ids),
            "layer_types": layers[: sizes["layers"]],
            "block_auto_adjust_ff_dim": False,
        },
        image_token_id=ids["<image>"],
        projector_hidden_size=96,
        downsample_factor=sizes["merge"],
    )


SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == "
    "'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}{{ '<image>\n' }}{% endif %}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAVA_TEMPLATE = (
    "{% for message in messages %}{{ message['role'].upper() + ': ' }}{% for line in message['content'] %}"
    "{% if line['type'] == 'image' %}{{ '<image>\n' }}{% else %}{{ line['text'] }}{% endif %}{% endfor %}{{ ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
GEMMA3_TEMPLATE = (
    "{{ '<bos>' }}{% for message in messages %}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{% for line in message['content'] %}{% if line['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}"
    "{{ line['text'] | trim }}{% endif %}{% endfor %}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA3_IMAGE = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")


def _llava_fields(sizes: Sizes, strategy: str, **others: Any) -> dict[str, Any]:
    """Returns the fields of processor_config.json of LLaVA's families."""
    fields = {"patch_size": sizes["patch_size"], "vision_feature_select_strategy": strategy, "image_token": "<image>"}
    return fields | others


SAMPLES = {
    **axial_vision_models.SAMPLES,
    "idefics3": Sample(
        architecture="Idefics3ForConditionalGeneration",
        make_config=_idefics3_config,
        processor=_idefics3_processor,
        tokens=(
            "<end_of_utterance>",
            "<|im_start|>",
            "<fake_token_around_image>",
            "<image>",
            "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
        ),
        chat_template=SMOLVLM_TEMPLATE,
        processor_class="Idefics3Processor",
        processor_fields=lambda sizes: {"image_seq_len": _num_merged(sizes)},
    ),
    "gemma3": Sample(
        architecture="Gemma3ForConditionalGeneration",
        make_config=_gemma3_config,
        processor=_stretched("Gemma3ImageProcessor", resample=2, do_pan_and_scan=None),
        tokens=("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", *GEMMA3_IMAGE),
        chat_template=GEMMA3_TEMPLATE,
        processor_class="Gemma3Processor",
        processor_fields=lambda sizes: {"image_seq_length": _num_merged(sizes)},
    ),
    "internvl": Sample(
        architecture="InternVLForConditionalGeneration",
        make_config=_internvl_config,
        processor=_stretched("GotOcr2ImageProcessor", **IMAGENET, resample=3, crop_to_patches=True, max_patches=6),
        tokens=("<|im_end|>", "<|im_start|>", "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        chat_template=CHATML_TEMPLATE.replace("<image>", "<IMG_CONTEXT>"),
        processor_class="InternVLProcessor",
        processor_fields=lambda sizes: {"image_seq_length": _num_merged(sizes)},
    ),
    "llava": Sample(
        architecture="LlavaForConditionalGeneration",
        make_config=_llava_config,
        processor=lambda sizes: (
            {"image_processor_type": "CLIPImageProcessor", **STEPS, **CLIP, "resample": 3, "do_center_crop": True}
            | {"size": {"shortest_edge": sizes["image_size"]}}
            | {"crop_size": {"height": sizes["image_size"], "width": sizes["image_size"]}}
        ),
        tokens=("</s>", "<s>", "<image>"),
        chat_template=LLAVA_TEMPLATE,
        processor_class="LlavaProcessor",
        processor_fields=lambda sizes: _llava_fields(sizes, "default", num_additional_image_tokens=1),
    ),
    "llava_onevision": Sample(
        architecture="LlavaOnevisionForConditionalGeneration",
        make_config=_llava_onevision_config,
        processor=_anyres("LlavaOnevisionImageProcessor"),
        tokens=("<|im_end|>", "<|im_start|>", "<image>", "<video>"),
        chat_template=CHATML_TEMPLATE,
        processor_class="LlavaOnevisionProcessor",
        processor_fields=lambda sizes: _llava_fields(
            sizes,
            "full",
            num_image_tokens=(sizes["image_size"] // sizes["patch_size"]) ** 2,
            vision_aspect_ratio="anyres_max_9",
        ),
    ),
    "llava_next": Sample(
        architecture="LlavaNextForConditionalGeneration",
        make_config=_llava_next_config,
        processor=lambda sizes: (
            _anyres("LlavaNextImageProcessor")(sizes)
            | {"crop_size": {"height": sizes["image_size"], "width": sizes["image_size"]}}
            | {"size": {"shortest_edge": sizes["image_size"]}}
        ),
        tokens=("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<image>"),
        chat_template=LLAVA_TEMPLATE,
        processor_class="LlavaNextProcessor",
        processor_fields=lambda sizes: _llava_fields(sizes, "full"),
    ),
    "lfm2_vl": Sample(
        architecture="Lfm2VlForConditionalGeneration",
        make_config=_lfm2_vl_config,
        processor=_stretched("Lfm2VlImageProcessorFast", resample=2, do_image_splitting=True),
        tokens=(
            "<|im_end|>",
            "<|im_start|>",
            "<image>",
            "<|image_start|>",
            "<|image_end|>",
            "<|img_thumbnail|>",
            *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 6) for column in range(1, 6)),
        ),
        chat_template=CHATML_TEMPLATE,
        processor_class="Lfm2VlProcessor",
    ),
}
