"""Makes a draft model for a GPT-2: its first layers, trained to give the same distribution on a text.

    python -m benchmarks.experiments.speculation_0045.make_draft_model DIR [--layers 1] [--slow-model DIR2]

`bench_speculative --draft-model DIR` needs it if there is no pair of trained models. Training is distillation (Hinton
et al., 2015): the loss is the divergence from the model's distribution at temperature 1.

The slow model gives the same text in longer steps. It must have enough layers that its weights exceed the caches in the
measured data type, because a step of a large model reads its weights from memory: bfloat16 takes about twice as many
layers as float32 (`--idle-layers 25`).
"""

import argparse
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn.functional import kl_div
from transformers import GPT2LMHeadModel

from supervisor.model.lookup import BUNDLED_MODEL

BATCH, LENGTH = 8, 128
LEARNING_RATE = 1e-3
LAYER_PREFIX = "transformer.h."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    text = Path("../shared/prompts/tinyshakespeare/input.txt")
    parser.add_argument("directory", type=Path, help="where the draft model is written")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="default: the bundled model")
    parser.add_argument("--text", type=Path, default=text, help="what is trained on (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--slow-model", type=Path, metavar="DIR2", help="where a slower model of the same text is written"
    )
    parser.add_argument(
        "--idle-layers",
        type=int,
        default=11,
        help="that it has more, so many that the weights do not fit the caches in the data type that is measured "
        "(default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    options = parser.parse_args()
    teacher = GPT2LMHeadModel.from_pretrained(options.model, dtype=torch.float32).eval()
    if options.slow_model:
        _save(_with_idle_layers(teacher, options.idle_layers), options.model, options.slow_model)
    student = _first_layers(teacher, options.layers)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    ids = torch.tensor(tokenizer.encode(options.text.read_text(encoding="utf-8"), add_special_tokens=False).ids)
    _train(student, teacher, ids, options.steps)
    _save(student, options.model, options.directory)


def _save(model: GPT2LMHeadModel, source: Path, directory: Path) -> None:
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, directory / name)


def _with_layers(model: GPT2LMHeadModel, num_layers: int) -> GPT2LMHeadModel:
    config = type(model.config)(**{**model.config.to_dict(), "n_layer": num_layers})
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(config, name, 0.0)
    return GPT2LMHeadModel(config)


def _with_idle_layers(model: GPT2LMHeadModel, num_idle: int) -> GPT2LMHeadModel:
    """Returns the model with layers behind its own that add zero to the residual stream."""
    slow = _with_layers(model, model.config.n_layer + num_idle)
    slow.load_state_dict(model.state_dict(), strict=False)
    idle = tuple(f"{LAYER_PREFIX}{index}." for index in range(model.config.n_layer, slow.config.n_layer))
    with torch.no_grad():
        for name, parameter in slow.named_parameters():
            if name.startswith(idle) and ".c_proj." in name:
                parameter.zero_()
    return slow


def _first_layers(teacher: GPT2LMHeadModel, num_layers: int) -> GPT2LMHeadModel:
    student = _with_layers(teacher, num_layers)
    kept = {f"{LAYER_PREFIX}{index}." for index in range(num_layers)}
    state = {
        name: tensor
        for name, tensor in teacher.state_dict().items()
        if not name.startswith(LAYER_PREFIX) or name[: name.index(".", len(LAYER_PREFIX)) + 1] in kept
    }
    student.load_state_dict(state)
    return student.train()


def _train(student: GPT2LMHeadModel, teacher: GPT2LMHeadModel, ids: torch.Tensor, num_steps: int) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
    for step in range(num_steps):
        starts = torch.randint(len(ids) - LENGTH, (BATCH,)).tolist()
        tokens = torch.stack([ids[start : start + LENGTH] for start in starts])
        with torch.no_grad():
            requested = teacher(tokens).logits.log_softmax(-1)
        got = student(tokens).logits.log_softmax(-1)
        loss = kl_div(got.flatten(0, 1), requested.flatten(0, 1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == num_steps - 1:
            same = (got.argmax(-1) == requested.argmax(-1)).float().mean()
            print(f"step {step}: divergence {loss.item():.3f}, same likeliest token {same.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
