"""What the layer of a head of multi-token prediction reads (DeepSeek-V3, arXiv:2412.19437, section 2.2).

Each token's embedding is joined with the final hidden state of the token before it. The model has kept that state, in
the slot of its own token, after its final norm.

Shape legend: T tokens, E embedding size, S slots.
"""

from torch import Tensor

from kernels.operations.hidden_states import join_hidden
from scheduler_proc.computing.model.blocks.layer import layer_parameters
from scheduler_proc.computing.model.blocks.norm import norm_parameters, pop_scale
from scheduler_proc.computing.model.blocks.weights import Weights, pop_linear
from scheduler_proc.computing.model.description import MTP, ModelDescription
from scheduler_proc.computing.model.parameters import Parameter, linear_parameters
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.rows import StepRows


def mtp_parameters(model: ModelDescription) -> list[Parameter]:
    """Returns the parameters of the whole head; it shares the model's embedding and its head's weight."""
    if model.mtp is None:
        return []
    size, norms = model.hidden_size, ("embedding_norm", "hidden_norm", "final_norm")
    return [
        *(parameter for name in norms for parameter in norm_parameters(f"{MTP}.{name}", model.final_norm)),
        *linear_parameters(f"{MTP}.join", size, 2 * size, has_bias=False, split=None),
        *layer_parameters(f"{MTP}.layers.0", model.mtp, size),
    ]


class MtpInputs:
    def __init__(self, model: ModelDescription, weights: Weights):
        norm = model.final_norm
        self._weights = pop_scale(weights, "embedding_norm", norm), pop_scale(weights, "hidden_norm", norm)
        self._eps = norm.eps
        self._join = pop_linear(weights, "join")

    def __call__(self, step: StepInputs, embedded_TE: Tensor, hidden_SE: Tensor, out_TE: Tensor | None) -> Tensor:
        """Returns the residual stream, [T, E], possibly in `out_TE`; `step.slots` are those of the tokens before."""
        joined_TJ = join_hidden(embedded_TE, hidden_SE, step.slots, self._weights, self._eps)
        return self._join(joined_TJ, StepRows(step), out_TE)
