"""A step as large as the flags allow, to measure the memory of a step, and a small one, to warm up."""

from msgspec.structs import replace

from messages.columns import num_int32, pack_float32, pack_int32, pack_int64
from messages.config import Config
from messages.steps import Batch, LogitEdits, ScoredTokens

# What costs most: every row samples, through every filter, with penalties and logprobs, and every token is scored.
TEMPERATURE, TOP_P, MIN_P = 1.0, 0.9, 0.01
REPETITION, FREQUENCY, PRESENCE = 1.1, 0.1, 0.1
NUM_TOP = 20

WARM_UP_TOKENS, WARM_UP_ROWS = 32, 4


def plan_warm_up(config: Config, max_num_batched_tokens: int, num_rows: int = WARM_UP_ROWS) -> Batch:
    """Returns a small step, so that the first request does not pay for what libraries set up at their first call."""
    num_tokens = min(WARM_UP_TOKENS, max_num_batched_tokens)
    num_rows = min(num_rows, config.scheduling.max_num_seqs)
    return plan_full_step(num_tokens, num_rows, config.facts.max_model_len, config.cache.block_size)


def plan_warm_ups(config: Config, max_num_batched_tokens: int) -> list[Batch]:
    """Returns small steps that choose tokens in every way, for each kind of row count that Triton compiles apart."""
    batches: list[Batch] = []
    for num_rows in (1, WARM_UP_ROWS, 16):
        full = plan_warm_up(config, max_num_batched_tokens, num_rows)
        num_sampled = num_int32(full.sample_rows)
        ones, zeros = pack_float32([1.0] * num_sampled), pack_float32([0.0] * num_sampled)
        drawn = replace(full, top_ps=ones, min_ps=zeros, edits=None, num_logprobs=b"", scored=None)
        batches += [full, drawn, replace(drawn, temperatures=zeros)]
    return batches


def plan_full_step(num_tokens: int, max_rows: int, max_row_tokens: int, page_size: int) -> Batch:
    """Returns a step of up to `num_tokens` tokens in up to `max_rows` rows: decode rows first, then long prefills.

    All rows use the same first pages of the cache, as many as `max_row_tokens` tokens take; nobody may hold them.
    """
    query_lens = _split(num_tokens, min(max_rows, num_tokens), max_row_tokens)
    num_rows, num_decode_rows = len(query_lens), query_lens.count(1)
    num_pages = -(-max(query_lens) // page_size)
    positions = [position for query_len in query_lens for position in range(query_len)]
    return Batch(
        step_id=0,
        phase="decode" if num_decode_rows == num_rows else "mixed" if num_decode_rows else "prefill",
        num_decode_rows=num_decode_rows,
        uids=pack_int64(range(num_rows)),
        query_lens=pack_int32(query_lens),
        context_lens=pack_int32([0] * num_rows),
        token_ids=pack_int32([0] * len(positions)),
        positions=pack_int32(positions),
        slots=pack_int64(positions),
        page_tables=pack_int32(list(range(num_pages)) * num_rows),
        num_pages_per_row=num_pages,
        sample_rows=pack_int32(range(num_rows)),
        temperatures=pack_float32([TEMPERATURE] * num_rows),
        top_ps=pack_float32([TOP_P] * num_rows),
        top_ks=pack_int32([0] * num_rows),
        min_ps=pack_float32([MIN_P] * num_rows),
        seeds=pack_int64(range(num_rows)),
        sample_positions=pack_int64(query_lens),
        edits=_plan_edits(query_lens),
        num_logprobs=pack_int32([NUM_TOP] * num_rows),
        scored=ScoredTokens(pack_int32(range(len(positions))), pack_int32([0] * len(positions)), NUM_TOP),
    )


def _plan_edits(query_lens: list[int]) -> LogitEdits:
    """Returns a bias and all penalties for each row, whose tokens all count as output."""
    num_rows = len(query_lens)
    return LogitEdits(
        bias_rows=pack_int32(range(num_rows)),
        bias_ids=pack_int32([0] * num_rows),
        bias_values=pack_float32([0.0] * num_rows),
        penalty_rows=pack_int32(range(num_rows)),
        repetition_penalties=pack_float32([REPETITION] * num_rows),
        frequency_penalties=pack_float32([FREQUENCY] * num_rows),
        presence_penalties=pack_float32([PRESENCE] * num_rows),
        num_history=pack_int32(query_lens),
        num_history_prompt=pack_int32([0] * num_rows),
        history_ids=pack_int32([0] * sum(query_lens)),
    )


def _split(num_tokens: int, num_rows: int, max_row_tokens: int) -> list[int]:
    """Returns row lengths in ascending order, at least 1 each: few rows as long as they may be, the others short."""
    query_lens: list[int] = []
    for num_later_rows in reversed(range(num_rows)):
        query_lens.append(min(max_row_tokens, num_tokens - sum(query_lens) - num_later_rows))
    return query_lens[::-1]
