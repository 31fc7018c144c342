"""Writes the model of `images.json`: SmolLM2 135M with the tokens and a random tower of SmolVLM.

    python -m benchmarks.experiments.images_0146.make_model OUT

Needs the bundled GGUF file and the package accelerate. Then run llama.cpp's `convert_hf_to_gguf.py OUT --outtype f16`,
once more with `--mmproj`, and `llama-quantize` of the first to Q4_K_M.
"""

import json
import sys
from pathlib import Path

import torch
import transformers

SOURCE, FILE = "assets/smollm2-135m-instruct", "SmolLM2-135M-Instruct.gguf"
TOKENS = [
    *("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{line}_col_{column}>" for line in range(1, 7) for column in range(1, 7)),
]
TOWER = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 512,
    "patch_size": 16,
}
TEMPLATE = """\
<|im_start|>{% for message in messages %}{{ message.role | capitalize }}: {% if message.content is string %}
{{- message.content }}{% else %}{% for part in message.content %}
{{- '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""
STEPS = ("convert_rgb", "resize", "rescale", "normalize", "pad", "image_splitting")
PROCESSOR = {
    "image_processor_type": "Idefics3ImageProcessor",
    "processor_class": "Idefics3Processor",
    **{f"do_{step}": True for step in STEPS},
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 1,
    "size": {"longest_edge": 2048},
    "max_image_size": {"longest_edge": 512},
}


def main(out: Path) -> None:
    text = transformers.AutoModelForCausalLM.from_pretrained(SOURCE, gguf_file=FILE, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(SOURCE, gguf_file=FILE, chat_template=TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    text.resize_token_embeddings(-(-len(tokenizer) // 64) * 64, mean_resizing=False)
    fields = {name: value for name, value in text.config.to_dict().items() if name != "quantization_config"}
    config = transformers.Idefics3Config(
        vision_config=TOWER,
        text_config=transformers.LlamaConfig(**fields | {"architectures": ["VLlama3ForCausalLM"]}),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=4,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = transformers.Idefics3ForConditionalGeneration(config)
    model.model.text_model.load_state_dict(text.model.state_dict())
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), encoding="utf-8")
    processor = {"image_seq_len": 64, "processor_class": "Idefics3Processor"}
    (out / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
