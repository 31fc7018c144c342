"""Cases of the kernel benchmarks: paged caches with random contents, tokens of real models, logits of real sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments.paged_kv import SCALE_DTYPE, PagedKV
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape

PAGE_SIZE = 16


@dataclass(frozen=True)
class Case:
    """`num_rows` rows with `num_new` tokens each after `num_before` earlier ones."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_rows: int
    num_new: int
    num_before: int
    num_shared: int = 0
    """The earlier tokens that all rows share, in the same pages."""


@dataclass(frozen=True)
class MadeCase:
    query: Tensor
    cache: PagedKV
    page_tables: Tensor
    out: Tensor

    def dense_heads(self) -> tuple[Tensor, Tensor]:
        """Returns copies of K and V as torch's attention reads them: [rows, kv heads, tokens, head dimension]."""
        tokens = self.page_tables.shape[1] * self.cache.page_size
        positions = torch.arange(tokens, device=self.query.device).expand(len(self.page_tables), -1)
        slots = self.cache.find_slots(self.page_tables, positions)
        keys, values = self.cache.keys[slots], self.cache.values[slots]
        return keys.transpose(1, 2).contiguous(), values.transpose(1, 2).contiguous()


def make_case(
    case: Case, device: torch.device, dtype: torch.dtype = torch.bfloat16, codes: torch.dtype | None = None
) -> MadeCase:
    """Returns the tensors of the case; its cache has codes of the dtype `codes`, if given."""
    torch.manual_seed(0)
    pages_a_row = -(-(case.num_before + case.num_new) // PAGE_SIZE)
    num_pages = case.num_rows * pages_a_row
    num_slots = num_pages * PAGE_SIZE
    kv = torch.randn(2, num_slots, case.num_kv_heads, case.head_dim, dtype=dtype, device=device)
    num_tokens = case.num_rows * case.num_new
    query = torch.randn(num_tokens, case.num_heads, case.head_dim, dtype=dtype, device=device)
    page_tables = torch.randperm(num_pages, dtype=torch.int32, device=device).view(case.num_rows, pages_a_row)
    page_tables[:, : case.num_shared // PAGE_SIZE] = page_tables[0, : case.num_shared // PAGE_SIZE].clone()
    if codes is None:
        cache = PagedKV(kv[0], kv[1], PAGE_SIZE)
    else:
        scales = torch.rand(2, num_slots, case.num_kv_heads, device=device).to(SCALE_DTYPE)
        cache = PagedKV(kv[0].to(codes), kv[1].to(codes), PAGE_SIZE, scales[0], scales[1])
    return MadeCase(query, cache, page_tables, torch.empty_like(query))


NUM_TOKENS = {"cpu": (1, 16, 256), "cuda": (1, 64, 256, 2048, 8192)}


@dataclass(frozen=True)
class ModelCase:
    shape: ModelShape
    num_tokens: int


def model_cases(models: Sequence[str]) -> dict[str, dict[str, ModelCase]]:
    """Returns the cases of each device by label."""
    return {
        device: {f"{model}, {num} tokens": ModelCase(MODEL_SHAPES[model], num) for model in models for num in nums}
        for device, nums in NUM_TOKENS.items()
    }


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


VOCAB_CASES = {
    device: {f"{model}, {num} rows": VocabCase(num, MODEL_SHAPES[model].vocab_size) for model in MODELS for num in nums}
    for device, nums in NUM_ROWS.items()
}
"""Device → label → case."""
