"""How many window pages a cache gets, and what the KV cache of long contexts takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_proc.computing.kv_cache.page_sizes import LEAST_STATES, PageSizes
from scheduler_proc.computing.step.features.windows import count_steady

LONG = 32 * 1024


def sizes_of(
    num_global: int, num_windowed: int, window: int, context: int = LONG, num_seqs: int = 64, chunk: int = 2048
) -> PageSizes:
    """Returns the sizes of pages of 16 tokens; a layer's page has 1 KB."""
    steady, num_chunk, per_context = count_steady(window, 16), -(-chunk // 16), -(-context // 16)
    return PageSizes(1024 * num_global, 1024 * num_windowed, window, steady, num_chunk, num_seqs, per_context)


GEMMA3_1B, GEMMA3_4B = sizes_of(4, 22, 512), sizes_of(5, 29, 1024)
GPT_OSS_20B, MISTRAL_7B = sizes_of(12, 12, 128, 131_072), sizes_of(0, 32, 4096)


@pytest.mark.parametrize("sizes", [GEMMA3_1B, GEMMA3_4B])
@pytest.mark.parametrize("num_requests", [1, 4, 100])
def test_long_contexts_of_gemma_3_take_less_than_a_third(sizes: PageSizes, num_requests: int):
    """For any number of requests of 32 K tokens."""
    num_pages = num_requests * LONG // 16
    share = sizes.num_bytes(num_pages) / (num_pages * (sizes.page_bytes + sizes.window_bytes))
    assert 0.15 < share < 0.28
    assert sizes.fit(sizes.num_bytes(num_pages)) == num_pages


def test_the_rows_of_gpt_oss_all_have_a_window():
    num_pages = 2 * 131_072 // 16
    assert GPT_OSS_20B.count_window_pages(num_pages) == 64 * 9 + 128


def test_a_model_whose_layers_all_have_windows_gets_window_pages_for_all_memory():
    num_pages = MISTRAL_7B.fit(32 * 1024 * 1000)
    assert MISTRAL_7B.count_window_pages(num_pages) in (999, 1000)
    assert num_pages > 7 * 999, "as many requests of full length"


@settings(deadline=None)
@given(
    num_global=st.integers(0, 40),
    num_windowed=st.integers(1, 40),
    window=st.integers(1, 4096),
    context=st.integers(8192, 1 << 17),
    num_seqs=st.integers(1, 256),
    chunk=st.integers(1, 8192),
    num_pages=st.integers(0, 100_000),
)
def test_any_request_finds_enough_window_pages(num_global, num_windowed, window, context, num_seqs, chunk, num_pages):
    sizes = sizes_of(num_global, num_windowed, window, context, num_seqs, chunk)
    count = sizes.count_window_pages(num_pages)
    assert min(num_pages, sizes.num_steady + sizes.num_chunk) <= count <= num_pages
    assert count * sizes.pages_per_context >= num_pages * sizes.num_steady or count == num_pages
    assert sizes.num_bytes(sizes.fit(num_pages * 1024)) <= num_pages * 1024
    assert sizes.count_window_pages(num_pages + 1) >= count


def test_without_a_window_all_memory_is_for_pages():
    sizes = PageSizes(1024)
    assert (sizes.fit(10_300), sizes.num_bytes(10), sizes.count_window_pages(10)) == (10, 10_240, 0)


MIB = 1 << 20
QWEN35_08B = PageSizes(192 << 10, max_num_seqs=64, pages_per_context=2048, state_bytes=19 * MIB)
"""Pages of 16 tokens in 6 layers, contexts of 32 K tokens; 18 recurrent layers."""

MAMBA_130M = PageSizes(0, max_num_seqs=64, pages_per_context=512, state_bytes=19 * MIB)


def test_states_get_half_of_the_memory_and_then_a_third():
    at_least, half, at_most = (QWEN35_08B.count_states(num_pages) for num_pages in (2048, 2048 + 3000, 100_000))
    assert (QWEN35_08B.pages_per_state, at_least, half) == (102, LEAST_STATES, LEAST_STATES + 3000 // 102)
    assert 0.3 < at_most * QWEN35_08B.state_bytes / QWEN35_08B.num_bytes(100_000) < 0.34


def test_a_request_of_full_length_and_a_few_states_fit_into_a_small_cache():
    assert QWEN35_08B.num_bytes(2048) == 2048 * (192 << 10) + LEAST_STATES * 19 * MIB
    assert QWEN35_08B.fit(QWEN35_08B.num_bytes(2048)) == 2048


def test_a_model_without_attention_has_memory_for_states_alone():
    num_pages = MAMBA_130M.fit(2 << 30)
    assert num_pages == 64 * 512, "as many as can be used"
    assert MAMBA_130M.count_states(num_pages) == LEAST_STATES + 63
    assert MAMBA_130M.num_bytes(MAMBA_130M.fit(1 << 30)) <= 1 << 30
    assert MAMBA_130M.count_states(MAMBA_130M.fit(1 << 30)) == (1 << 30) // (19 * MIB)


@settings(deadline=None)
@given(
    page_kb=st.integers(0, 512),
    state_kb=st.integers(1, 100_000),
    context=st.integers(1, 4096),
    num_seqs=st.integers(1, 256),
    num_kb=st.integers(0, 1 << 24),
)
def test_pages_and_states_stay_within_one_budget(page_kb, state_kb, context, num_seqs, num_kb):
    sizes = PageSizes(page_kb << 10, max_num_seqs=num_seqs, pages_per_context=context, state_bytes=state_kb << 10)
    num_pages, num_bytes = sizes.fit(num_kb << 10), num_kb << 10
    assert num_pages == 0 or sizes.num_bytes(num_pages) <= num_bytes
    assert sizes.num_bytes(num_pages + 1) > num_bytes or not page_kb
    assert LEAST_STATES <= sizes.count_states(num_pages) <= sizes.count_states(num_pages + 1)
