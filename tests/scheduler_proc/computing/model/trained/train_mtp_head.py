"""Trains heads of multi-token prediction for small models of this folder, and writes `NAME_mtp.safetensors`.

python -m tests.scheduler_proc.computing.model.trained.train_mtp_head [NAME ...]

Some 5 minutes each on one thread. The model is fixed; the head learns the model's own next-token probabilities on text
that the model samples. So it needs no other text.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

from messages.ring.requests import SamplingParams
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.model.trained.train_models import CONTEXT, FOLDER

NUM_TEXTS = 512
BATCH_ROWS = 8
NUM_STEPS = 500
PEAK_RATE = 3e-3


class Kind(NamedTuple):
    """The blocks of a family's head, the layer that its own is like, and the names of its tensors by those here."""

    decoder_layer: type[nn.Module]
    norm: type[nn.Module]
    layer_index: int
    names: Mapping[str, str]


LAST = "model.layers.3."
KINDS = {
    "qwen3_5": Kind(Qwen3_5DecoderLayer, Qwen3_5RMSNorm, 3, {"": "mtp."}),
    "deepseek_v3": Kind(
        DeepseekV3DecoderLayer,
        DeepseekV3RMSNorm,
        2,
        {
            "layers.0.": LAST,
            "fc.": f"{LAST}eh_proj.",
            "pre_fc_norm_embedding.": f"{LAST}enorm.",
            "pre_fc_norm_hidden.": f"{LAST}hnorm.",
            "norm.": f"{LAST}shared_head.norm.",
        },
    ),
}


def head_file(name: str) -> Path:
    return FOLDER / f"{name}_mtp.safetensors"


class MtpHead(nn.Module):
    """The head, of transformers' blocks.

    Entry i of a row has the embedding of token i + 1 and the model's final hidden state (after its last norm) of token
    i; its output predicts token i + 2.
    """

    def __init__(self, name: str, model: Any):
        super().__init__()
        config, self._kind = model.config, KINDS[name]
        size, eps, norm = config.hidden_size, config.rms_norm_eps, self._kind.norm
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = norm(size, eps)
        self.pre_fc_norm_hidden = norm(size, eps)
        self.layers = nn.ModuleList([self._kind.decoder_layer(config, self._kind.layer_index)])
        self.norm = norm(size, eps)
        self._has_axes = name == "qwen3_5"
        self._rotary = [model.model.rotary_emb]  # not a parameter of the head

    def forward(self, embedded_BLE: Tensor, hidden_BLE: Tensor) -> Tensor:
        """Returns what the model's head takes: it is also the hidden state from which the next token is drafted."""
        parts = self.pre_fc_norm_embedding(embedded_BLE), self.pre_fc_norm_hidden(hidden_BLE)
        x_BLE = self.fc(torch.cat(parts, dim=-1))
        length = x_BLE.shape[1]
        positions = torch.arange(length).expand(*([3] if self._has_axes else []), len(x_BLE), -1)
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        rotation = self._rotary[0](x_BLE, positions)
        return self.norm(self.layers[0](x_BLE, position_embeddings=rotation, attention_mask=mask))

    def in_checkpoint(self) -> dict[str, Tensor]:
        """Returns the tensors by the names that a checkpoint has."""
        return {self._rename(name): tensor for name, tensor in self.state_dict().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Sets the tensors, given by the names that a checkpoint has."""
        self.load_state_dict({name: tensors[self._rename(name)].float() for name in self.state_dict()})

    def _rename(self, name: str) -> str:
        begins = next(begins for begins in self._kind.names if name.startswith(begins))
        return self._kind.names[begins] + name.removeprefix(begins)


def load_model(name: str) -> Any:
    path = FOLDER / name
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return model.requires_grad_(False).eval()


def sample_texts(name: str) -> Tensor:
    """Returns rows of tokens [rows, context], each of which the model has sampled after a newline or another byte."""
    engine = OfflineEngine(make_config(FOLDER / name, max_num_seqs=64))
    prompts = [[10 if index % 2 else 32 + index % 90] for index in range(NUM_TEXTS)]
    params = [
        SamplingParams(max_tokens=CONTEXT - 1, temperature=0.5 + index % 3 / 4, seed=index, ignore_eos=True)
        for index in range(NUM_TEXTS)
    ]
    outputs = engine.generate(prompts, params)
    return torch.tensor([prompt + output.token_ids for prompt, output in zip(prompts, outputs, strict=True)])


def train(name: str) -> None:
    began_s = time.monotonic()
    texts = sample_texts(name)
    print(f"{texts.numel()} tokens after {time.monotonic() - began_s:.0f} s", flush=True)
    torch.manual_seed(1)
    model = load_model(name)
    head = MtpHead(name, model)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.05)
    optimizer = torch.optim.AdamW(head.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, NUM_STEPS, pct_start=0.1)
    for step in range(NUM_STEPS):
        rows_BL = texts[torch.randint(len(texts), (BATCH_ROWS,))]
        with torch.no_grad():
            hidden_BLE = model.model(rows_BL).last_hidden_state
            target_BLV = log_softmax(model.lm_head(hidden_BLE[:, 1:]), -1)
        drafted_BLV = log_softmax(model.lm_head(head(model.model.embed_tokens(rows_BL[:, 1:]), hidden_BLE[:, :-1])), -1)
        loss = kl_div(drafted_BLV.flatten(0, 1), target_BLV.flatten(0, 1), reduction="batchmean", log_target=True)
        loss.backward()
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 49:
            same = (drafted_BLV.argmax(-1) == target_BLV.argmax(-1)).float().mean().item()
            print(f"{step + 1}: {loss.item():.3f} same {same:.3f} {time.monotonic() - began_s:.0f} s", flush=True)
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in head.in_checkpoint().items()}
    save_file(tensors, head_file(name))


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or KINDS:
        train(name)


if __name__ == "__main__":
    main(sys.argv[1:])
