"""Logits of real vocabularies: so many rows that sample, on a CPU and on a GPU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

NUM_ROWS = {"cpu": (1, 16), "cuda": (1, 16, 64, 256)}
MODELS = ("GPT-2 124M", "Qwen3-0.6B", "Llama-3-8B")


@dataclass(frozen=True)
class VocabCase:
    num_rows: int
    vocab_size: int

    def logits(self, device: torch.device) -> Tensor:
        """Returns bfloat16 logits [S, V] spread as widely as those of a model."""
        torch.manual_seed(0)
        return (torch.randn(self.num_rows, self.vocab_size, device=device) * 3).bfloat16()

    def seeds(self, device: torch.device) -> Tensor:
        return torch.arange(self.num_rows, device=device)


CASES = {
    device: {f"{model}, {num} rows": VocabCase(num, MODEL_SHAPES[model].vocab_size) for model in MODELS for num in nums}
    for device, nums in NUM_ROWS.items()
}
"""By what to call them."""
