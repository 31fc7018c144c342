"""Top-k and top-p beside a sort, on copies of the scores, which every form overwrites.

python -m benchmarks.kernels.bench_filter_top [--device cpu|cuda] [--quick] [--json FILE]
"""

import torch
from torch import Tensor

from benchmarks.kernels.measure import Work, forms_of, run
from benchmarks.kernels.vocab_cases import CASES, VocabCase
from kernels.operations.filter_scores import filter_top, filter_top_reference

TOP_K, TOP_P = 50, 0.9


def make(case: VocabCase, device: torch.device) -> Work:
    """Half of the rows have a top-k and a top-p, half a top-p alone."""
    scores, copy = case.logits(device).float(), torch.empty(case.num_rows, case.vocab_size, device=device)
    top_ks = torch.full((case.num_rows,), case.vocab_size, device=device)
    top_ks[::2] = TOP_K
    top_ps = torch.full((case.num_rows,), TOP_P, device=device)
    others = {
        "reference": lambda: filter_top_reference(copy.copy_(scores), top_ks, top_ps),
        "sort": lambda: filter_sorted(copy.copy_(scores), top_ks, top_ps),
    }
    forms = forms_of("filter_top", scores, lambda: filter_top(copy.copy_(scores), top_ks, top_ps), others)
    return Work(forms, 4 * scores.nbytes)


def filter_sorted(scores_SV: Tensor, top_ks_S: Tensor, top_ps_S: Tensor) -> Tensor:
    """What engines do without a kernel of their own."""
    sorted_SV, order_SV = scores_SV.sort(dim=-1, descending=True)
    ranks_V = torch.arange(scores_SV.shape[1], device=scores_SV.device)
    sorted_SV.masked_fill_(ranks_V >= top_ks_S[:, None], float("-inf"))
    probs_SV = sorted_SV.softmax(-1)
    sorted_SV.masked_fill_(probs_SV.cumsum(-1) - probs_SV >= top_ps_S[:, None], float("-inf"))
    return scores_SV.scatter_(1, order_SV, sorted_SV)


if __name__ == "__main__":
    raise SystemExit(run(__doc__, "filter_top", CASES, make))
