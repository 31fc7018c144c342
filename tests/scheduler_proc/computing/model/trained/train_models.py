"""Trains the small models of this folder with transformers, on the bytes of one text, and writes what the tests read.

python -m tests.scheduler_proc.computing.model.trained.train_models TEXT [NAME ...]

Some 10 minutes for each model on one thread. A token is a byte. The end of the text is held out: its first bytes are
`held_out.txt`, on which perplexity is compared.
"""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

FOLDER = Path(__file__).parent
CONTEXT = 512
"""Tokens of a training row and of a held-out row."""
HELD_OUT_ROWS = 8
BATCH_ROWS = 8
NUM_STEPS = 600
FEWER_STEPS = {"qwen3_5": 300}
"""Without kernels of its own, Gated DeltaNet takes three times as long for a step."""
PEAK_RATE = 3e-3
WARMUP_STEPS = 50
BALANCE_RATE = 2e-3
HELD_OUT_SHARE = 0.08
"""Share of the text, its end, that is never trained on."""

SHAPE = {
    "vocab_size": 256,
    "num_attention_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
EXPERTS = {
    "hidden_size": 96,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.01,
}


def qwen3_moe() -> transformers.PreTrainedConfig:
    return transformers.Qwen3MoeConfig(
        **SHAPE,
        **EXPERTS,
        num_hidden_layers=3,
        num_experts=8,
        moe_intermediate_size=64,
        intermediate_size=64,
        norm_topk_prob=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )


def gemma3() -> transformers.PreTrainedConfig:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    return transformers.Gemma3TextConfig(
        **SHAPE,
        hidden_size=128,
        num_key_value_heads=1,
        num_hidden_layers=6,
        intermediate_size=192,
        query_pre_attn_scalar=32,
        sliding_window=32,
        rope_parameters=ropes,
    )


def gpt_oss() -> transformers.PreTrainedConfig:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "truncate": False}
    return transformers.GptOssConfig(
        **SHAPE,
        **EXPERTS,
        num_hidden_layers=4,
        num_local_experts=8,
        intermediate_size=48,
        sliding_window=32,
        rope_parameters={**yarn, "rope_theta": 150_000.0, "beta_fast": 32.0, "beta_slow": 1.0},
    )


def qwen3_5() -> transformers.PreTrainedConfig:
    """Three layers of Gated DeltaNet, in which three value heads share a key head, and one of gated attention."""
    return transformers.Qwen3_5TextConfig(
        **SHAPE,
        hidden_size=160,
        num_key_value_heads=2,
        num_hidden_layers=4,
        intermediate_size=448,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
    )


def deepseek_v3() -> transformers.PreTrainedConfig:
    """A dense layer, then two with 16 experts in four groups, two of which a token's three experts are from."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}
    return transformers.DeepseekV3Config(
        **{**SHAPE, "head_dim": 16},
        hidden_size=96,
        num_key_value_heads=4,
        num_hidden_layers=3,
        intermediate_size=192,
        q_lora_rank=48,
        kv_lora_rank=64,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_shared_experts=1,
        moe_intermediate_size=32,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        rms_norm_eps=1e-2,
        rope_parameters={**yarn, "mscale": 1.0, "mscale_all_dim": 1.0},
    )


MODELS: Mapping[str, Callable[[], transformers.PreTrainedConfig]] = {
    "qwen3_moe": qwen3_moe,
    "gemma3": gemma3,
    "gpt_oss": gpt_oss,
    "qwen3_5": qwen3_5,
    "deepseek_v3": deepseek_v3,
}


def learning_rate(step: int, num_steps: int) -> float:
    """Linear warm-up, then a cosine to 2 % of the peak."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return PEAK_RATE * warm * (0.02 + 0.98 * (1 + np.cos(np.pi * step / num_steps)) / 2)


@torch.no_grad()
def lengthen_memory(model: Any) -> None:
    """Draws the time steps of recurrent layers from 0.001 to 0.1, as the authors of Mamba-2 do.

    Transformers leaves them so long that heads forget a token at the next one.
    """
    for name, parameter in model.named_parameters():
        if name.endswith("dt_bias"):
            steps = torch.empty_like(parameter).uniform_(np.log(0.001), np.log(0.1)).exp()
            parameter.copy_(steps.expm1().log())


class ExpertBalance:
    """Raises the correction of experts with few tokens after each step (DeepSeek-V3, arXiv:2412.19437, 2.1.2)."""

    def __init__(self, model: Any):
        self._counts: dict[Any, torch.Tensor] = {}
        for module in model.modules():
            if hasattr(module, "e_score_correction_bias"):
                module.register_forward_hook(self._count)

    def _count(self, gate: Any, _inputs: Any, outputs: Any) -> None:
        *_, chosen_TK = outputs
        self._counts[gate] = chosen_TK.flatten().bincount(minlength=gate.num_experts).float()

    def apply(self) -> None:
        for gate, count_X in self._counts.items():
            gate.e_score_correction_bias += BALANCE_RATE * (count_X.mean() - count_X).sign()


@torch.no_grad()
def held_out_nats(model: Any, held_out: np.ndarray) -> float:
    """Mean cross entropy of the held-out rows, in nats per token."""
    rows_BL = torch.from_numpy(held_out[: HELD_OUT_ROWS * CONTEXT].astype(np.int64)).view(-1, CONTEXT)
    logits_BLV = model.eval()(input_ids=rows_BL).logits
    return cross_entropy(logits_BLV[:, :-1].flatten(0, 1), rows_BL[:, 1:].flatten()).item()


def train(name: str, text: np.ndarray) -> None:
    """Trains one model and writes it to its folder in bfloat16."""
    torch.manual_seed(1)
    model: Any = transformers.AutoModelForCausalLM.from_config(
        MODELS[name](), attn_implementation="eager", dtype=torch.float32
    )
    lengthen_memory(model)
    balance = ExpertBalance(model)
    cut, num_steps = int(len(text) * (1 - HELD_OUT_SHARE)), FEWER_STEPS.get(name, NUM_STEPS)
    draws = np.random.default_rng(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
    began_s = time.monotonic()
    print(name, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
    for step in range(num_steps):
        starts = draws.integers(cut - CONTEXT, size=BATCH_ROWS)
        rows_BL = torch.from_numpy(np.stack([text[start : start + CONTEXT] for start in starts]).astype(np.int64))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, num_steps)
        loss = model.train()(input_ids=rows_BL, labels=rows_BL).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        balance.apply()
        if step % 100 == 99 or step < 3:
            nats = held_out_nats(model, text[cut:])
            print(f"{step + 1}: {loss.item():.3f} held out {nats:.4f} {time.monotonic() - began_s:.0f} s", flush=True)
    model.config.output_router_logits = False
    model.to(torch.bfloat16).save_pretrained(FOLDER / name)
    (FOLDER / name / "generation_config.json").unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    text = np.frombuffer(Path(arguments[0]).read_bytes(), np.uint8)
    cut = int(len(text) * (1 - HELD_OUT_SHARE))
    (FOLDER / "held_out.txt").write_bytes(text[cut : cut + HELD_OUT_ROWS * CONTEXT].tobytes())
    for name in arguments[1:] or MODELS:
        train(name, text)


if __name__ == "__main__":
    main(sys.argv[1:])
