"""Trains a head of multi-token prediction for the small Qwen3.5 of this folder, and writes `qwen3_5_mtp.safetensors`.

python -m tests.scheduler_proc.computing.model.trained.train_mtp_head

Some 5 minutes on one thread. The model is fixed; the head learns the model's own next-token probabilities on text that
the model samples. So it needs no other text.
"""

import time
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer, Qwen3_5RMSNorm

from messages.ring.requests import SamplingParams
from scheduler_proc.offline import OfflineEngine
from tests.checkpoints import make_config
from tests.scheduler_proc.computing.model.trained.train_models import CONTEXT, FOLDER

MODEL, HEAD = FOLDER / "qwen3_5", FOLDER / "qwen3_5_mtp.safetensors"
NUM_TEXTS = 512
BATCH_ROWS = 8
NUM_STEPS = 500
PEAK_RATE = 3e-3
ATTENDING_LAYER = 3


class MtpHead(nn.Module):
    """The head, of transformers' blocks, with the parameters' names in a checkpoint.

    Entry i of a row has the embedding of token i + 1 and the model's final hidden state (after its last norm) of token
    i; its output predicts token i + 2.
    """

    def __init__(self, model: Any):
        super().__init__()
        config = model.config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(size, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(size, eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, ATTENDING_LAYER)])
        self.norm = Qwen3_5RMSNorm(size, eps)
        self._rotary = [model.model.rotary_emb]  # not a parameter of the head

    def forward(self, embedded_BLE: Tensor, hidden_BLE: Tensor) -> Tensor:
        """Returns what the model's head takes: it is also the hidden state from which the next token is drafted."""
        parts = self.pre_fc_norm_embedding(embedded_BLE), self.pre_fc_norm_hidden(hidden_BLE)
        x_BLE = self.fc(torch.cat(parts, dim=-1))
        length = x_BLE.shape[1]
        positions = torch.arange(length).view(1, 1, -1).expand(3, len(x_BLE), -1)
        mask = torch.full((length, length), -torch.inf).triu(1)[None, None]
        return self.norm(self.layers[0](x_BLE, self._rotary[0](x_BLE, positions), attention_mask=mask))


def load_model() -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager")
    return model.requires_grad_(False).eval()


def sample_texts() -> Tensor:
    """Returns rows of tokens [rows, context], each of which the model has sampled after a newline or another byte."""
    engine = OfflineEngine(make_config(MODEL, max_num_seqs=64))
    prompts = [[10 if index % 2 else 32 + index % 90] for index in range(NUM_TEXTS)]
    params = [
        SamplingParams(max_tokens=CONTEXT - 1, temperature=0.5 + index % 3 / 4, seed=index, ignore_eos=True)
        for index in range(NUM_TEXTS)
    ]
    outputs = engine.generate(prompts, params)
    return torch.tensor([prompt + output.token_ids for prompt, output in zip(prompts, outputs, strict=True)])


def main() -> None:
    torch.set_num_threads(1)
    began_s = time.monotonic()
    texts = sample_texts()
    print(f"{texts.numel()} tokens after {time.monotonic() - began_s:.0f} s", flush=True)
    torch.manual_seed(1)
    model = load_model()
    head = MtpHead(model)
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
    save_file({f"mtp.{name}": tensor.to(torch.bfloat16) for name, tensor in head.state_dict().items()}, HEAD)


if __name__ == "__main__":
    main()
