"""A decoder whose steps transformers' code computes.

The rows of a step are one sequence for it, with the positions of each token; only attention knows that there are rows.

Shape legend: N tokens with logits, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from scheduler_proc.computing.model.attention_description import AttentionDescription
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.computing.model.stages import ComputeLayers, LayerKind, Memory
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.pipeline import WHOLE
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.transformers_model.attention import NAME, PagedAttention, attention_by


class TransformersDecoder(Decoder):
    """`module` is a causal language model of transformers; `model` describes its calls of attention, a layer each."""

    def __init__(self, module: Any, model: ModelDescription):
        self.model = model
        self.parallel, self.pipeline = ALONE, WHOLE
        self.layer_kinds: list[LayerKind] = []
        self._module = module
        self.activation_dtype: torch.dtype = module.dtype
        self.num_weight_bytes = sum(parameter.nbytes for parameter in module.parameters())
        module.set_attn_implementation(NAME)

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns the logits of `step.head_tokens`, [N, V]: a model may scale or cap them after its head."""
        with attention_by(PagedAttention(step, self.model.find(AttentionDescription), [cache for (cache,) in memory])):
            output = self._module(
                input_ids=step.token_ids[None].long(),
                position_ids=step.positions[None].long(),
                logits_to_keep=0 if step.all_go_to_head else step.head_tokens,  # 0: all
                use_cache=False,
            )
        return output.logits[0]

    def logits(self, logits_NV: Tensor, out_NV: Tensor | None = None, slots_N: Tensor | None = None) -> Tensor:
        return logits_NV
