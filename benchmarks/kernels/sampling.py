"""Operations on logits, from the head's output to a token, next to the device's bandwidth."""

import torch
from torch import Tensor

from benchmarks.kernels.cases import VOCAB_CASES, VocabCase
from benchmarks.kernels.measure import Work, forms_of, of_operation
from kernels.arguments.rows import RowDraws
from kernels.operations.apply_bitmask import apply_bitmask, apply_bitmask_reference
from kernels.operations.draw_filtered import draw_filtered, draw_filtered_reference
from kernels.operations.filter_scores import filter_top, filter_top_reference
from kernels.operations.sample import draw, draw_reference, greedy, greedy_reference
from kernels.operations.top_logprobs import top_logprobs, top_logprobs_reference


def make_apply_bitmask(case: VocabCase, device: torch.device) -> Work:
    logits, rows = case.logits(device).float(), torch.arange(case.num_rows, device=device)
    num_words = -(-case.vocab_size // 32)
    bitmask = torch.randint(-(2**31), 2**31, (case.num_rows, num_words), device=device).to(torch.int32)
    bitmask[:, ::2] = 0
    others = {"reference": lambda: apply_bitmask_reference(logits, rows, bitmask)}
    return Work(forms_of("apply_bitmask", logits, lambda: apply_bitmask(logits, rows, bitmask), others), logits.nbytes)


TEMPERATURE = 0.6


def make_draw(case: VocabCase, device: torch.device) -> Work:
    logits, seeds = case.logits(device), case.seeds(device)
    temperatures = torch.full((case.num_rows,), TEMPERATURE, device=device)
    others = {
        "greedy, sample": lambda: draw_reference(logits, temperatures, seeds, seeds),
        "torch": lambda: (logits.float() / temperatures[:, None]).softmax(-1).multinomial(1),
    }
    forms = forms_of("draw", logits, lambda: draw(logits, temperatures, seeds, seeds), others)
    return Work(forms, logits.nbytes)


TOP_K, TOP_P = 50, 0.9


def make_filter_top(case: VocabCase, device: torch.device) -> Work:
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


def make_draw_filtered(case: VocabCase, device: torch.device) -> Work:
    """Half of the rows have a top-k and a top-p, half a top-p alone."""
    logits, num_rows = case.logits(device), case.num_rows
    rows = torch.arange(num_rows, device=device)
    top_ks = torch.full((num_rows,), case.vocab_size, device=device)
    top_ks[::2] = TOP_K
    ones = torch.ones(num_rows, device=device)
    draws = RowDraws(ones, rows, rows, top_ks, ones * TOP_P, ones * 0)
    others = {"reference": lambda: draw_filtered_reference(logits, rows, draws)}
    return Work(forms_of("draw_filtered", logits, lambda: draw_filtered(logits, rows, draws), others), logits.nbytes)


def make_greedy(case: VocabCase, device: torch.device) -> Work:
    logits = case.logits(device)
    others = {"reference": lambda: greedy_reference(logits), "torch": lambda: logits.argmax(-1)}
    return Work(forms_of("greedy", logits, lambda: greedy(logits), others), logits.nbytes)


NUM_TOP = 20


def make_top_logprobs(case: VocabCase, device: torch.device) -> Work:
    logits, ids = case.logits(device), case.seeds(device)
    others = {
        "reference": lambda: top_logprobs_reference(logits, ids, NUM_TOP),
        "torch": lambda: logits.float().log_softmax(-1).topk(NUM_TOP),
    }
    return Work(forms_of("top_logprobs", logits, lambda: top_logprobs(logits, ids, NUM_TOP), others), logits.nbytes)


BENCHMARKS = {
    "apply_bitmask": of_operation(
        "grammar bitmasks, half of whose words have a bit set", VOCAB_CASES, make_apply_bitmask
    ),
    "draw": of_operation("rows with a temperature, from logits to tokens", VOCAB_CASES, make_draw),
    "draw_filtered": of_operation("draws with top-k and top-p from bfloat16 logits", VOCAB_CASES, make_draw_filtered),
    "filter_top": of_operation("top-k and top-p on copies of the scores, and a sort", VOCAB_CASES, make_filter_top),
    "greedy": of_operation("the most likely token of each row", VOCAB_CASES, make_greedy),
    "top_logprobs": of_operation("logprobs of one token a row and of the 20 likeliest", VOCAB_CASES, make_top_logprobs),
}
