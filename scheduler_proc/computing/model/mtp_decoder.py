"""A head of multi-token prediction as a decoder: it drafts tokens from the model's final hidden states.

Its step has each token at the place of the token before it (`Batch.hidden_slots`): K and V of the token's entry go to
that place, where the hidden state that it reads is kept, too. Its own hidden state stands for the token's until the
model has computed the token; so it can draft the next one.

Shape legend: T tokens of the step, E embedding size, N tokens with logits, S slots.
"""

from dataclasses import replace

from torch import Tensor

from kernels.operations.hidden_states import store_hidden
from scheduler_proc.computing.model.blocks.mtp_inputs import MtpInputs
from scheduler_proc.computing.model.blocks.norm import Norm
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import Decoder, DescribedDecoder
from scheduler_proc.computing.model.description import MTP, ModelDescription
from scheduler_proc.computing.model.stages import (
    FINAL_NORM,
    ComputeLayers,
    HeadStage,
    LayerStage,
    Memory,
    begin_stream,
)
from scheduler_proc.computing.model.workspace import NEW_MEMORY, Activations
from scheduler_proc.computing.pipeline import WHOLE
from scheduler_proc.computing.step.features.kept_hidden import KEPT_HIDDEN
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows


def describe_mtp(main: ModelDescription) -> ModelDescription:
    """Returns the head of `main`, which must have one, as a model of one layer."""
    assert main.mtp is not None
    return replace(main, layers=(main.mtp,), mtp=None, held_layers=None)


class MtpDecoder(Decoder):
    """The head of `main`; it pops its weights. Embedding and head are the model's."""

    def __init__(self, main: DescribedDecoder, weights: Weights, max_model_len: int):
        names = [name for name in weights if name.startswith(f"{MTP}.")]
        own = {name.removeprefix(f"{MTP}."): weights.pop(name) for name in names}
        assert main.embedding is not None
        assert main.head is not None
        self.model = describe_mtp(main.model)
        self.parallel, self.pipeline = main.parallel, WHOLE
        self.num_weight_bytes = 0  # the model has counted those of the head
        self.activation_dtype = main.activation_dtype
        self._embedding = main.embedding.block
        self._inputs = MtpInputs(main.model, own)
        self._layers = LayerStage(self.model, range(1), own, max_model_len, main.parallel)
        self.layer_kinds = self._layers.kinds
        self.head = HeadStage(Norm(FINAL_NORM, main.model.final_norm, own), main.head.block)
        self.logits, self.token_logits = self.head.logits, self.head.token_logits
        self.best_tokens = self.head.best_tokens

    def forward(
        self,
        step: StepInputs,
        memory: Memory,
        room: Activations = NEW_MEMORY,
        compute_middle: ComputeLayers | None = None,
        hidden_SE: Tensor | None = None,
    ) -> Tensor:
        """Returns the hidden states of `step.head_tokens`, [N, E], and keeps them in the slots of `KEPT_HIDDEN`."""
        slots_N = step.view(KEPT_HIDDEN)
        assert hidden_SE is not None
        assert slots_N is not None
        embedded_TE = self._embedding(step, room.normed)
        residual_TE = self._inputs(step, embedded_TE, hidden_SE, room.residual)
        stream = begin_stream(self.model, residual_TE, StepRows(step), room)
        self._layers.apply(stream, memory, compute_middle)
        hidden_NE = self.head.end(stream)
        store_hidden(hidden_NE, slots_N if step.all_go_to_head else slots_N[step.head_tokens], hidden_SE)
        return hidden_NE
