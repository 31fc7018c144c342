"""Runs planned steps: owns the model, its KV cache and the device they are on."""

from pathlib import Path

import torch

from kernels.cpu.library import load_kernels
from messages.columns import num_int32
from messages.config import Config
from messages.errors import BootError
from messages.steps import Batch, ForwardOutput
from scheduler_proc.computing.checkpoint import open_checkpoint
from scheduler_proc.computing.decoder import Decoder
from scheduler_proc.computing.families.registry import find_family
from scheduler_proc.computing.full_step import plan_full_step
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache import (
    KVCache,
    allocate_cache,
    choose_num_pages,
    free_cpu_cache_bytes,
    page_bytes,
    pages_per_context,
)
from scheduler_proc.computing.logprobs import score_prompt, score_sampled
from scheduler_proc.computing.placement import Placement, find_placement, set_cpu_threads
from scheduler_proc.computing.sampler import choose_tokens
from scheduler_proc.computing.step_inputs import make_step_inputs
from scheduler_proc.computing.weight_cache import load_through_cache
from scheduler_proc.computing.weights import Report, make_dummy_weights

STEP_TOKENS_CUDA, STEP_TOKENS_CPU = 8192, 512
WARM_UP_TOKENS, WARM_UP_ROWS = 32, 4


class ModelRunner:
    """Runs one step at a time. What a step returns is a function of its `Batch` and of the KV cache alone.

    `max_num_batched_tokens`: `--max-num-batched-tokens`, or its default on this device.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, placement: Placement, max_num_batched_tokens: int):
        self.num_pages = cache.num_pages
        self.max_num_batched_tokens = max_num_batched_tokens
        self._decoder = decoder
        self._cache = cache
        self._placement = placement

    def run(self, batch: Batch) -> ForwardOutput:
        """Runs the step and returns its result when it is known; the cache holds its K and V afterwards."""
        with torch.inference_mode():
            step = make_step_inputs(batch, self._placement.device)
            hidden_NE = self._decoder.forward(step, self._cache)
            num_sampled = num_int32(batch.sample_rows)
            logits_SV = self._decoder.logits(hidden_NE[:num_sampled])
            tokens_S = choose_tokens(logits_SV, batch)
            logprobs = score_sampled(logits_SV, tokens_S, batch)
            prompt_logprobs = score_prompt(hidden_NE[num_sampled:], self._decoder, batch)
        return ForwardOutput(batch.step_id, tokens_S.cpu().numpy().tobytes(), logprobs, prompt_logprobs)


def load_runner(config: Config, report: Report) -> ModelRunner:
    """Returns a runner that is ready for its first step, and tells `report` what it is doing meanwhile.

    Raises `BootError` for a model that is not supported, weights that do not fit it, and memory that does not suffice.
    """
    report("reading the model's configuration", None)
    hf_config = read_hf_config(Path(config.facts.model_dir))
    family = find_family(hf_config)
    decoder_config = family.read_config(hf_config, config.facts.max_model_len)
    placement = find_placement(config.model, hf_config)
    if not placement.is_cuda:
        set_cpu_threads(config.model.cpu_threads)
        load_kernels(report)
    if config.model.load_format == "dummy":
        weights = make_dummy_weights(decoder_config, placement, report)
    else:
        checkpoint = open_checkpoint(Path(config.facts.model_dir), config.model.load_format)
        is_cached = config.model.weight_cache
        weights = load_through_cache(decoder_config, family, checkpoint, placement, report, is_cached)
    decoder = Decoder(decoder_config, weights, config.facts.max_model_len)
    max_num_batched_tokens = config.scheduling.max_num_batched_tokens or (
        STEP_TOKENS_CUDA if placement.is_cuda else STEP_TOKENS_CPU
    )
    report("allocating the KV cache", None)
    num_pages = _plan_cache(config, decoder, placement, max_num_batched_tokens)
    cache = allocate_cache(decoder_config, num_pages, config.cache.block_size, placement)
    runner = ModelRunner(decoder, cache, placement, max_num_batched_tokens)
    report("warming up", None)
    _warm_up(runner, config)
    return runner


def _plan_cache(config: Config, decoder: Decoder, placement: Placement, max_num_batched_tokens: int) -> int:
    """Returns the number of pages; on a GPU after a step of the largest size has shown what a step needs."""
    bytes_per_page = page_bytes(decoder.config, config.cache.block_size, placement)
    if not placement.is_cuda:
        return choose_num_pages(config, bytes_per_page, free_cpu_cache_bytes())
    scratch_pages = pages_per_context(config)
    _run_full_step(config, decoder, placement, max_num_batched_tokens)
    # The allocator keeps what the step took, so the device's own count of used memory includes it.
    free_bytes, total_bytes = torch.cuda.mem_get_info(placement.device)
    used_bytes = total_bytes - free_bytes - scratch_pages * bytes_per_page
    torch.cuda.empty_cache()
    return choose_num_pages(config, bytes_per_page, int(total_bytes * config.cache.gpu_memory_utilization) - used_bytes)


def _run_full_step(config: Config, decoder: Decoder, placement: Placement, num_tokens: int) -> None:
    """Runs a step of the largest size on a cache of one context's pages, which is given back afterwards."""
    page_size, max_model_len = config.cache.block_size, config.facts.max_model_len
    scratch = allocate_cache(decoder.config, pages_per_context(config), page_size, placement)
    batch = plan_full_step(num_tokens, config.scheduling.max_num_seqs, max_model_len, page_size)
    try:
        ModelRunner(decoder, scratch, placement, num_tokens).run(batch)
    except torch.OutOfMemoryError as error:
        raise BootError(
            f"a step of {num_tokens} tokens does not fit into the memory of {placement.device} beside the weights: "
            f"{str(error).splitlines()[0]} Lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
        ) from None


def _warm_up(runner: ModelRunner, config: Config) -> None:
    """Runs a small step, so that the first request does not pay for what libraries set up at their first call."""
    num_tokens = min(WARM_UP_TOKENS, runner.max_num_batched_tokens)
    runner.run(plan_full_step(num_tokens, WARM_UP_ROWS, config.facts.max_model_len, config.cache.block_size))
