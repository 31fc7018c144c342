from itertools import accumulate
from pathlib import Path

import pytest

from messages.columns import num_int32, unpack_int32
from scheduler_proc.computing.sampling.plan import plan_sampling
from scheduler_proc.computing.step.dummy_batch import plan_dummy_batch, plan_warm_ups
from tests.checkpoints import CONTEXT, VOCAB_SIZE, build_checkpoint, make_config


@pytest.mark.parametrize(
    ("num_tokens", "max_rows", "max_row_tokens", "query_lens", "num_decode_rows"),
    [
        (10, 3, 96, [1, 1, 8], 2),
        (20, 4, 8, [1, 3, 8, 8], 1),
        (100, 2, 30, [30, 30], 0),
        (3, 256, 96, [1, 1, 1], 3),
        (1, 1, 1, [1], 1),
    ],
)
def test_a_dummy_batch(
    num_tokens: int, max_rows: int, max_row_tokens: int, query_lens: list[int], num_decode_rows: int
) -> None:
    batch = plan_dummy_batch(num_tokens, max_rows, max_row_tokens, 16, 100)
    assert list(unpack_int32(batch.query_lens)) == query_lens
    assert batch.num_decode_rows == num_decode_rows
    assert batch.phase == {0: "prefill", len(query_lens): "decode"}.get(num_decode_rows, "mixed")
    assert batch.logits_processing is not None
    assert list(unpack_int32(batch.logits_processing.num_history)) == query_lens
    assert num_int32(batch.logits_processing.history_ids) == num_int32(batch.token_ids)
    assert list(unpack_int32(batch.logits_processing.bitmasks)) == [-1] * 4 * len(query_lens)
    assert num_int32(batch.logits_processing.allowed_ids) == len(query_lens)
    assert batch.prompt_logprobs is not None
    assert list(unpack_int32(batch.prompt_logprobs.token_indices)) == list(range(num_int32(batch.token_ids)))
    assert num_int32(batch.num_logprobs) == len(query_lens)
    assert num_int32(batch.token_ids) == sum(query_lens) <= num_tokens
    assert batch.num_sampled == len(query_lens)
    assert max(unpack_int32(batch.page_tables)) < -(-max_row_tokens // 16)
    assert num_int32(batch.page_tables) == len(query_lens) * batch.num_pages_per_row
    assert list(unpack_int32(batch.state_sources)) == [0] * len(query_lens)
    stored = [index for index, slot in enumerate(unpack_int32(batch.state_slots)) if slot == 0]
    assert stored == [end - 1 for end in accumulate(query_lens)], "each row's last token"


def test_warm_ups_choose_tokens_in_every_way(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mqa")
    batches = plan_warm_ups(make_config(tmp_path, max_num_seqs=6), 512)
    for num_tokens in (min(512, 4 * CONTEXT), 128):
        assert num_int32(batches[-1].token_ids) == num_tokens
        assert batches.pop().prompt_logprobs is None
    assert [batch.num_sampled for batch in batches] == [1] * 4 + [4] * 4
    assert [batch.phase for batch in batches] == ["decode"] * 4 + ["mixed"] * 4
    plans = [plan_sampling(batch, VOCAB_SIZE) for batch in batches]
    assert [(plan.num_special, plan.num_one_read, "temperatures" in plan.columns) for plan in plans[4:]] == [
        (4, 0, False),
        (4, 4, False),
        (0, 0, True),
        (0, 0, False),
    ]
