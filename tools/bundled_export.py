"""Measures and exports a bundled model: Hugging Face files, float16 weights, and a model card."""

import json
import math
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from bundled_text import END_OF_TEXT, Corpus, held_out_windows
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

SAMPLE_PROMPT = "ROMEO:\n"
SAMPLE_TOKENS = 160

CARD = """# {name}

A GPT-2 of {num_parameters:,} parameters with its own byte-level BPE, trained from nothing by Sluice's
`tools/train_bundled_model.py`, so that the server writes text without a network. It knows its one text
and nothing else: a fixture, not an assistant.

| | |
|---|---|
| data | {data_note} |
| training part | {train_tokens:,} tokens |
| held-out part | {held_out_tokens:,} tokens ({held_out_bytes:,} bytes, the end of the text) |
| vocabulary, context | {vocab_size:,} tokens with end-of-text, {context:,} positions |
| layers, width, heads | {n_layer}, {n_embd}, {n_head}; output head tied to the embedding |
| steps, exported step | {steps:,}, {best_step:,} (the best on the held-out part) |
| loss at the exported step | training {train_loss:.3f} nats a token (with dropout), held-out {nats:.3f} nats a token |
| held-out of the exported float16 weights | **{bits_per_byte:.3f} bits a byte** |
| machine, duration | {machine}; {minutes:.0f} minutes |

`{end_of_text}` parts runs of whole paragraphs in training; the model ends its text with it now and then.
A `--split-share` above 0 undoes some BPE merges in half of the training rows, which raises their loss a token.

Commands, from the root of the repository (each resumes after the previous one):

{commands}

## Losses

| step | training, nats a token | held-out, bits a byte |
|---|---|---|
{losses}

## Sample

Prompt `{prompt}`, with the settings of `generation_config.json`, seed 1:

```
{sample}
```
"""


def no_measurements() -> list[tuple[int, float, float]]:
    """Return the history of a run that has not begun."""
    return []


def no_commands() -> list[tuple[int, str]]:
    """Return the commands of a run that has not begun."""
    return []


@dataclass
class RunRecord:
    """The facts of a training run that the card shows."""

    history: list[tuple[int, float, float]] = field(default_factory=no_measurements)
    """(step, training loss in nats a token, held-out bits a byte), in order."""
    seconds: float = 0.0
    """Wall time spent in training, over all resumed parts."""
    commands: list[tuple[int, str]] = field(default_factory=no_commands)
    """The first step of each part of the run, and its command line."""

    def best(self) -> tuple[int, float, float]:
        """Return the measurement with the lowest held-out loss."""
        return min(self.history, key=lambda measurement: measurement[2])

    def spread(self, num_rows: int) -> list[tuple[int, float, float]]:
        """Return about `num_rows` measurements, evenly spread, with the last one."""
        stride = max(1, len(self.history) // num_rows)
        return self.history[::-1][::stride][::-1]


@torch.inference_mode()
def held_out_bits_per_byte(
    model: "transformers.GPT2LMHeadModel", windows: list[tuple[torch.Tensor, torch.Tensor]], num_bytes: int
) -> float:
    """Return the mean cost of the held-out text; leaves the model in evaluation mode."""
    model.eval()
    nats = 0.0
    for input_ids_1L, target_ids_1L in windows:
        logits_1LV = model(input_ids=input_ids_1L.to(model.device)).logits.float()
        nats += cross_entropy(logits_1LV[0], target_ids_1L[0].to(model.device), reduction="sum").item()
    return nats / math.log(2) / num_bytes


def export_model(model: "transformers.GPT2LMHeadModel", tokenizer: Tokenizer, folder: Path) -> None:
    """Write configuration, float16 weights and tokenizer for transformers; replaces these files."""
    folder.mkdir(parents=True, exist_ok=True)
    config: Any = model.config
    config.update({"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "use_cache": True})
    config.update({"dtype": "float16"})
    config.save_pretrained(folder)
    generation_settings(config.eos_token_id).save_pretrained(folder)
    weights = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }
    partial = folder / "model.safetensors.tmp"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")
    export_tokenizer(tokenizer, config.n_positions, folder)


def export_tokenizer(tokenizer: Tokenizer, context: int, folder: Path) -> None:
    """Write tokenizer.json and its configuration, under the class name that every transformers knows."""
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
    ).save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def generation_settings(end_of_text_id: int) -> "transformers.GenerationConfig":
    """Return the sampling defaults that suit a model this small."""
    return transformers.GenerationConfig(
        do_sample=True,
        temperature=0.8,
        top_k=50,
        top_p=0.9,
        bos_token_id=end_of_text_id,
        eos_token_id=end_of_text_id,
        pad_token_id=end_of_text_id,
    )


def write_card(folder: Path, corpus: Corpus, record: RunRecord, data_note: str) -> float:
    """Load the exported model as a user would, write its card, and return its held-out bits a byte."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = model.config
    windows = held_out_windows(corpus, config.n_positions)
    bits_per_byte = held_out_bits_per_byte(model, windows, corpus.held_out_bytes)
    best_step, train_loss, _ = record.best()
    card = CARD.format(
        name=folder.name,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        data_note=data_note,
        train_tokens=len(corpus.train_ids),
        held_out_tokens=len(corpus.held_out_ids),
        held_out_bytes=corpus.held_out_bytes,
        vocab_size=config.vocab_size,
        end_of_text=END_OF_TEXT,
        context=config.n_positions,
        n_layer=config.n_layer,
        n_embd=config.n_embd,
        n_head=config.n_head,
        steps=record.history[-1][0],
        best_step=best_step,
        train_loss=train_loss,
        nats=bits_per_byte * math.log(2) * corpus.held_out_bytes / len(corpus.held_out_ids),
        bits_per_byte=bits_per_byte,
        machine=machine_name(),
        minutes=record.seconds / 60,
        commands="\n".join(f"- from step {step:,}: `{command}`" for step, command in record.commands),
        losses="\n".join(f"| {step:,} | {loss:.3f} | {bits:.3f} |" for step, loss, bits in record.spread(12)),
        prompt=SAMPLE_PROMPT.strip(),
        sample=write_sample(folder, model),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
    return bits_per_byte


def write_sample(folder: Path, model: Any) -> str:
    """Return the sample prompt and the model's own continuation of it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(SAMPLE_PROMPT, return_tensors="pt")
    num_tokens = min(SAMPLE_TOKENS, model.config.n_positions - prompt["input_ids"].shape[1])
    torch.manual_seed(1)
    output_ids = model.generate(**prompt, max_new_tokens=num_tokens)
    return tokenizer.decode(output_ids[0], skip_special_tokens=True).rstrip()


def machine_name() -> str:
    """Return the processor that trains: the GPU's name, or the CPU's with the number of threads in use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    amx = " with AMX" if any("amx_bf16" in line for line in lines) else ""
    return f"{names[0] if names else platform.machine()}{amx}, threads in use: {torch.get_num_threads()}"
