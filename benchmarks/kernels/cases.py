"""Paged caches of real shapes with random contents, their pages in random order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_kv import PagedKV

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


@dataclass(frozen=True)
class MadeCase:
    query: Tensor
    cache: PagedKV
    page_tables: Tensor
    out: Tensor


def make_case(case: Case) -> MadeCase:
    """Returns bfloat16 tensors of the case."""
    torch.manual_seed(0)
    pages_a_row = -(-(case.num_before + case.num_new) // PAGE_SIZE)
    num_pages = case.num_rows * pages_a_row
    kv = torch.randn(2, num_pages * PAGE_SIZE, case.num_kv_heads, case.head_dim).bfloat16()
    query = torch.randn(case.num_rows * case.num_new, case.num_heads, case.head_dim).bfloat16()
    page_tables = torch.randperm(num_pages).int().view(case.num_rows, pages_a_row)
    return MadeCase(query, PagedKV(kv[0], kv[1], PAGE_SIZE), page_tables, torch.empty_like(query))
