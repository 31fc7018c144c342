"""A step as large as the flags allow, to measure the memory of a step, and a small one, to warm up."""

from itertools import accumulate

from msgspec.structs import replace

from messages.columns import pack_int32, pack_int64
from messages.config.server import Config
from messages.ring.axes import columns_of, fill_columns
from messages.ring.steps import (
    ALLOWED,
    ALLOWED_ID,
    BIAS,
    HISTORY_ID,
    MASK_WORD,
    MASKED,
    PENALIZED,
    ROW,
    SAMPLED,
    TOKEN,
    Batch,
    LogitsProcessing,
    PromptLogprobTargets,
)
from scheduler_proc.computing.step.features.registry import FEATURES

NUM_TOP = 20
"""Alternatives to each token of a full step."""

NEEDED_TO_DRAW = {"sample_tokens", "sample_positions", "temperatures", "seeds"}
"""The columns of sampled tokens that drawing requires; the others request more."""

FILTERS_ONE_READ = {"top_ks", "top_ps", "min_ps"}
"""The columns of filters that a GPU applies while it draws."""

WARM_UP_TOKENS, WARM_UP_ROWS = 32, 4
MORE_TOKENS = 128
"""More than few, for kernels that cut the inputs of products until there are many tokens."""


def plan_warm_up(config: Config, max_num_batched_tokens: int, num_tokens: int = WARM_UP_TOKENS) -> Batch:
    """Returns a small step, so that libraries are set up before the first request."""
    num_rows, facts = min(WARM_UP_ROWS, config.scheduling.max_num_seqs), config.facts
    num_tokens = min(num_tokens, max_num_batched_tokens)
    return plan_dummy_batch(num_tokens, num_rows, facts.max_model_len, config.cache.block_size, facts.vocab_size)


def plan_warm_ups(config: Config, max_num_batched_tokens: int) -> list[Batch]:
    """Returns small steps that choose tokens in every way, with a single decode row and with several rows, a larger one
    and the largest, whose tiles may be others.

    They use every specialization of every Triton kernel, so that none is compiled while requests wait.
    """
    batches: list[Batch] = []
    for num_tokens in (1, WARM_UP_TOKENS):
        full = plan_warm_up(config, max_num_batched_tokens, num_tokens)
        plain = fill_columns(Batch, {SAMPLED: full.num_sampled})
        names = {name for name, column in columns_of(Batch).items() if column.axis is SAMPLED} - NEEDED_TO_DRAW
        without = {name: plain[name] for name in names}
        drawn = replace(full, logits_processing=None, prompt_logprobs=None, **without)
        filtered = replace(drawn, **{name: getattr(full, name) for name in FILTERS_ONE_READ})
        batches += [full, filtered, drawn, replace(drawn, temperatures=plain["temperatures"])]
    for num_tokens in (MORE_TOKENS, max_num_batched_tokens):
        larger = plan_warm_up(config, max_num_batched_tokens, num_tokens)
        batches.append(replace(larger, logits_processing=None, prompt_logprobs=None))
    return batches


def plan_dummy_batch(num_tokens: int, max_rows: int, max_row_tokens: int, page_size: int, vocab_size: int) -> Batch:
    """Returns a step of up to `num_tokens` tokens in up to `max_rows` rows: decode rows first, then long prefills.

    All rows use the same first pages of the cache, as many as `max_row_tokens` tokens take, and the first state slot.
    No request may hold them.
    """
    query_lens = _split(num_tokens, min(max_rows, num_tokens), max_row_tokens)
    num_rows, num_decode_rows = len(query_lens), query_lens.count(1)
    num_pages = -(-max(query_lens) // page_size)
    positions = [position for query_len in query_lens for position in range(query_len)]
    num_tokens = len(positions)
    sizes = {ROW: num_rows, TOKEN: num_tokens, SAMPLED: num_rows, BIAS: num_rows, PENALIZED: num_rows}
    dummy = fill_columns(
        Batch,
        sizes,
        is_dummy=True,
        uids=pack_int64(range(num_rows)),
        query_lens=pack_int32(query_lens),
        positions=pack_int32(positions),
        slots=pack_int64(positions),
        page_tables=pack_int32(list(range(num_pages)) * num_rows),
        sample_tokens=pack_int32(end - 1 for end in accumulate(query_lens)),
        sample_positions=pack_int64(query_lens),
    )
    for feature in FEATURES:
        dummy |= feature.dummy(query_lens, dummy)
    num_mask_words = -(-vocab_size // 32)
    processing = fill_columns(
        LogitsProcessing,
        sizes
        | {ALLOWED: num_rows, ALLOWED_ID: num_rows}
        | {HISTORY_ID: num_tokens, MASKED: num_rows, MASK_WORD: num_rows * num_mask_words},
        is_dummy=True,
        allowed_rows=pack_int32(range(num_rows)),
        num_allowed=pack_int32([1] * num_rows),
        bias_rows=pack_int32(range(num_rows)),
        penalty_rows=pack_int32(range(num_rows)),
        num_history=pack_int32(query_lens),
        bitmask_rows=pack_int32(range(num_rows)),
    )
    prompt_logprobs = PromptLogprobTargets(pack_int32(range(num_tokens)), pack_int32([0] * num_tokens), NUM_TOP)
    return Batch(
        step_id=0,
        num_decode_rows=num_decode_rows,
        num_pages_per_row=num_pages,
        logits_processing=LogitsProcessing(**processing, num_mask_words=num_mask_words),
        prompt_logprobs=prompt_logprobs,
        **dummy,
    )


def _split(num_tokens: int, num_rows: int, max_row_tokens: int) -> list[int]:
    """Returns row lengths in ascending order, at least 1 each: few rows as long as they may be, the others short."""
    query_lens: list[int] = []
    for num_later_rows in reversed(range(num_rows)):
        query_lens.append(min(max_row_tokens, num_tokens - sum(query_lens) - num_later_rows))
    return query_lens[::-1]
