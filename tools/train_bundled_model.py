"""Trains a small GPT-2 and its tokenizer on one text file and exports both for transformers and Sluice.

Each step draws its windows and its dropout from (seed, step), so a resumed run equals an uninterrupted one.
On a CPU with glibc, MALLOC_MMAP_THRESHOLD_=4000000000 in the environment makes it faster: buffers are kept.
"""

import argparse
import dataclasses
import math
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from bundled_export import RunRecord, export_model, held_out_bits_per_byte, write_card
from bundled_text import Corpus, build_corpus, draw_window, held_out_windows, split_text, train_tokenizer
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy

POSITION_AMPLITUDE = 0.05
"""Initial amplitude of the sinusoids; the token embeddings start with a standard deviation of 0.02."""
HEAD_GAIN = 1.5
"""Initial gain of the query and the key of the first layer's heads."""


@dataclass(frozen=True)
class TrainConfig:
    """The shape of the model and how it is trained; each field is an option of the command line."""

    seed: int = 1
    vocab_size: int = 3072
    """Tokens of the BPE at most, with the 256 bytes and end-of-text."""
    context: int = 1024
    """Positions of the model; a multiple of 8."""
    n_embd: int = 256
    n_layer: int = 5
    n_head: int = 4
    dropout: float = 0.15
    """On the embeddings and on both residual branches; attention itself has none."""
    split_share: float = 0.0
    """Share of tokens whose merge is undone, in half of the training rows; misspells what it writes."""
    held_out: float = 0.08
    """Share of the text, its end, that is never trained on."""
    lr: float = 2e-3
    weight_decay: float = 0.1
    """On matrices only."""
    warmup_steps: int = 100
    max_steps: int = 3200
    """Where the cosine ends and the run stops."""
    batch_tokens: int = 2048
    eval_every: int = 100
    """Steps between two held-out measurements, each of which writes a checkpoint."""
    minutes: float = 0.0
    """Wall time after which a run stops early, ready to resume; 0: no limit."""
    threads: int = 1


class Trainer:
    """The state of a run: weights, moments, step, and the best held-out weights so far."""

    def __init__(self, config: TrainConfig, corpus: Corpus, vocab_size: int) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.corpus = corpus
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = transformers.GPT2LMHeadModel(model_config(config, vocab_size, corpus.end_of_text_id))
        set_positions(self.model)
        cast(torch.nn.Module, self.model).to(self.device)
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.98), fused=True)
        self.autocast = has_fast_bf16(self.device)
        self.step = 0
        self.best_weights: dict[str, torch.Tensor] = {}
        self.record = RunRecord()

    def train_step(self) -> float:
        """Take one optimizer step; return its loss in nats a token."""
        config = self.config
        rng = np.random.default_rng([config.seed, self.step])
        window = draw_window(self.corpus, config.context, config.batch_tokens, config.split_share, rng)
        torch.manual_seed(int(rng.integers(2**62)))
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step)
        self.model.train()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            logits_BLV = self.model(
                input_ids=window.input_ids.to(self.device),
                position_ids=window.positions.to(self.device),
            ).logits
        target_ids = window.target_ids.to(self.device).flatten()
        loss = cross_entropy(logits_BLV.float().flatten(0, 1), target_ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()

    def measure(self, train_loss: float) -> float:
        """Return held-out bits per byte, after noting it and keeping the weights if they are the best."""
        windows = held_out_windows(self.corpus, self.config.context)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            bits_per_byte = held_out_bits_per_byte(self.model, windows, self.corpus.held_out_bytes)
        self.record.history.append((self.step, train_loss, bits_per_byte))
        if bits_per_byte <= self.record.best()[2]:
            self.best_weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        return bits_per_byte

    def save(self, path: Path) -> None:
        """Write everything that a later run needs to continue, atomically."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best_weights": self.best_weights,
            "step": self.step,
            "record": dataclasses.asdict(self.record),
        }
        torch.save(state, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint of the same shape."""
        state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best_weights = state["best_weights"]
        self.step = state["step"]
        self.record = RunRecord(**state["record"])


def model_config(config: TrainConfig, vocab_size: int, end_of_text_id: int) -> "transformers.GPT2Config":
    """Return the GPT-2 configuration; the fused tanh GELU is exported under its GPT-2 name, gelu_new."""
    return transformers.GPT2Config(
        vocab_size=vocab_size,
        n_positions=config.context,
        n_embd=config.n_embd,
        n_layer=config.n_layer,
        n_head=config.n_head,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=0.0,
        bos_token_id=end_of_text_id,
        eos_token_id=end_of_text_id,
        use_cache=False,
    )


@torch.no_grad()
def set_positions(model: "transformers.GPT2LMHeadModel") -> None:
    """Start the position table as sinusoids and all but one head of the first layer on the last few tokens.

    GPT-2 learns both from noise, which takes far more text than one small file: until then, it sees a bag
    of words. Sinusoids as in Vaswani et al. 2017, section 3.5, where a rotation of the query finds the key
    a fixed distance before. All of it is trained on from there.
    """
    config, attention = model.config, cast(Any, model.transformer.h[0]).attn
    width, head_dim = config.n_embd, config.n_embd // config.n_head
    frequencies_F = torch.logspace(math.log10(2.0), -math.log10(config.n_positions), width // 2)
    angles_PF = torch.arange(config.n_positions)[:, None] * frequencies_F
    table_PC = torch.stack([angles_PF.sin(), angles_PF.cos()], dim=2).flatten(1)
    model.transformer.wpe.weight.copy_(POSITION_AMPLITUDE * table_PC)
    query_CC, key_CC = attention.c_attn.weight[:, :width], attention.c_attn.weight[:, width : 2 * width]
    for head in range(config.n_head - 1):
        for pair in range(0, head_dim, 2):
            angle = float(frequencies_F[pair // 2]) * (head + 1)
            turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
            columns = slice(head * head_dim + pair, head * head_dim + pair + 2)
            query_CC[pair : pair + 2, columns] += HEAD_GAIN * turn
            key_CC[pair : pair + 2, columns] += HEAD_GAIN * torch.eye(2)


def has_fast_bf16(device: torch.device) -> bool:
    """Return whether bf16 matrix products beat fp32 here: on CUDA, and on a CPU with AMX."""
    cpu_info = Path("/proc/cpuinfo")
    return device.type == "cuda" or (cpu_info.exists() and "amx_bf16" in cpu_info.read_text())


def learning_rate(config: TrainConfig, step: int) -> float:
    """Linear warm-up, then a cosine that ends at 2 % of the peak at max_steps."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    share = min(1.0, (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps))
    return config.lr * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


@contextmanager
def stop_flag() -> Iterator[list[bool]]:
    """Yield a list that turns non-empty on SIGINT or SIGTERM, so that a run stops after its step."""
    stops: list[bool] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    previous = [signal.signal(number, lambda *_: stops.append(True)) for number in signals]
    try:
        yield stops
    finally:
        for number, handler in zip(signals, previous, strict=True):
            signal.signal(number, handler)


def train(trainer: Trainer, checkpoint: Path) -> None:
    """Run to max_steps, to the time limit or to a signal, whichever is first; leave a checkpoint."""
    config = trainer.config
    began_s, seconds_before, first_step = time.monotonic(), trainer.record.seconds, trainer.step
    losses: list[float] = []
    with stop_flag() as stops:
        while trainer.step < config.max_steps and not stops:
            losses.append(trainer.train_step())
            elapsed_s = time.monotonic() - began_s
            trainer.record.seconds = seconds_before + elapsed_s
            if 0 < config.minutes * 60 <= elapsed_s:
                stops.append(True)
            if trainer.step % config.eval_every == 0 or trainer.step == config.max_steps or stops:
                bits_per_byte = trainer.measure(float(np.mean(losses)))
                step_s = elapsed_s / (trainer.step - first_step)
                print(
                    f"step {trainer.step}/{config.max_steps}  train {np.mean(losses):.3f} nats/token  "
                    f"held-out {bits_per_byte:.4f} bits/byte (best {trainer.record.best()[2]:.4f})  "
                    f"{config.batch_tokens / step_s:.0f} tokens/s  "
                    f"left {(config.max_steps - trainer.step) * step_s / 60:.1f} min",
                    flush=True,
                )
                trainer.save(checkpoint)
                losses = []


def load_tokenizer(text: str, config: TrainConfig, path: Path) -> Tokenizer:
    """Return the tokenizer of the checkpoint folder, after training it there if it has none."""
    if not path.exists():
        train_tokenizer(split_text(text, config.held_out)[0], config.vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, TrainConfig]:
    """Return the paths and switches, and the training configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text_file", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"), help="resumes from here")
    parser.add_argument("--data-note", default="one text file", help="what the text is, for the model card")
    parser.add_argument("--export-only", action="store_true", help="export the best weights so far and stop")
    for field in dataclasses.fields(TrainConfig):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    options = parser.parse_args(arguments)
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    return options, TrainConfig(**{name: getattr(options, name) for name in names})


def main(arguments: list[str]) -> int:
    """Train or resume, then export the best held-out weights; return the exit status."""
    options, config = parse_arguments(arguments)
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)
    text = options.text_file.read_bytes().decode("utf-8", errors="replace")
    options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(text, config, options.checkpoint_dir / "tokenizer.json")
    corpus = build_corpus(text, tokenizer, config.held_out)
    if len(corpus.train_ids) < 2 or len(corpus.held_out_ids) == 0:
        raise SystemExit(f"{options.text_file}: too short to train on and to hold a part out")
    trainer = Trainer(config, corpus, tokenizer.get_vocab_size())
    checkpoint = options.checkpoint_dir / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
        print(f"resumes at step {trainer.step}", flush=True)
    num_parameters = sum(p.numel() for p in trainer.model.parameters())
    print(f"{len(corpus.train_ids)} training tokens, {num_parameters} parameters, {trainer.device}", flush=True)
    if not options.export_only:
        command = shlex.join(["python", "tools/train_bundled_model.py", *arguments])
        trainer.record.commands.append((trainer.step, command))
        train(trainer, checkpoint)
    if not trainer.best_weights:
        raise SystemExit(f"{options.checkpoint_dir}: nothing trained yet, nothing to export")
    trainer.model.load_state_dict(trainer.best_weights)
    export_model(trainer.model, tokenizer, options.out)
    bits_per_byte = write_card(options.out, corpus, trainer.record, options.data_note)
    print(f"exported to {options.out}: held-out {bits_per_byte:.4f} bits/byte", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
