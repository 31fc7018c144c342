"""Small random checkpoints of models that read images, as their families publish them, for all tests of images.

They are saved by transformers' own classes, with the processor's files, a byte-level tokenizer and a chat template.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from tests import axial_vision_models
from tests.tiny_llama import write_tokenizer
from tests.vision_sample import HALF, NUM_TEXT_TOKENS, STEPS, Sample, Sizes, text_config, vision_config

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


SMOLVLM_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == "
    "'image' %}{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

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
}
