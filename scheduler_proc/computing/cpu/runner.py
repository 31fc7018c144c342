"""Runs planned steps on the processor that plans them: a step is computed when it is launched.

Shape legend: S rows that sample, N tokens that go to the head, E embedding size, V vocabulary.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from messages.steps import Batch, ForwardOutput
from scheduler_proc.computing.cpu.captured_decodes import CapturedDecodes
from scheduler_proc.computing.cpu.prefault import Prefault
from scheduler_proc.computing.loading.placement import Placement
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.kv_tensors import KVTensors
from scheduler_proc.computing.model.workspace import Workspace
from scheduler_proc.computing.sampling.logprobs import score_prompt, score_sampled
from scheduler_proc.computing.sampling.sampler import choose_tokens, is_greedy
from scheduler_proc.computing.step.inputs import make_step_inputs
from scheduler_proc.computing.step.shapes import StepLimits


class ModelRunner:
    """Runs one step at a time. What a step returns is a function of its `Batch` and of the KV cache alone.

    `max_num_batched_tokens`: `--max-num-batched-tokens`, or its default on this device.
    """

    can_overlap = False
    drafter = None

    def __init__(self, decoder: Decoder, cache: KVTensors, placement: Placement, limits: StepLimits):
        self.num_pages = cache.num_pages
        self.max_num_batched_tokens = limits.max_num_batched_tokens
        self._decoder = decoder
        self._cache = cache
        self._placement = placement
        max_rows = limits.max_num_seqs
        max_tokens = max(limits.max_num_batched_tokens, max_rows)
        self._workspace = Workspace(decoder.config, placement.dtype, max_tokens, max_rows)
        self.prefault: Prefault | None = None
        """Gets memory for pages before they are used, where that is wanted."""
        self._decodes = CapturedDecodes(decoder, cache, self._workspace, max_rows, limits.num_pages)

    def launch(self, batch: Batch) -> ForwardOutput:
        """Runs the step at once: the processor that would plan the next one computes this one."""
        return self.run(batch)

    def run(self, batch: Batch) -> ForwardOutput:
        """Runs the step and returns its result when it is known; the cache holds its K and V afterwards."""
        with nullcontext() if self.prefault is None else self.prefault.step():
            return self._run(batch)

    def _run(self, batch: Batch) -> ForwardOutput:
        decoded = self._decodes.compute(batch)
        if decoded is not None and is_greedy(batch) and not batch.num_logprobs:
            return ForwardOutput(batch.step_id, decoded.next_tokens())
        with torch.inference_mode():
            prompt_logprobs = None
            if decoded is not None:
                logits_SV, likeliest_S = decoded.logits, decoded.likeliest
            else:
                hidden_NE, num_sampled = self._forward(batch), batch.num_sampled
                logits_SV = self._decoder.logits(hidden_NE[:num_sampled], self._workspace.logits(num_sampled))
                likeliest_S = None
                prompt_logprobs = score_prompt(hidden_NE[num_sampled:], self._decoder, batch)
            tokens_S = choose_tokens(logits_SV, batch, likeliest_S)
            logprobs = score_sampled(logits_SV, tokens_S, batch)
        return ForwardOutput(batch.step_id, tokens_S.cpu().numpy().tobytes(), logprobs, prompt_logprobs)

    def _forward(self, batch: Batch) -> Tensor:
        """Returns what the head reads, [N, E]."""
        step = make_step_inputs(batch, self._placement.device)
        if self.prefault is not None:
            self.prefault.use(int(step.slots.max()) // self._cache.layers[0].page_size)
        return self._decoder.forward(step, self._cache, self._workspace.activations(len(step.token_ids)))
