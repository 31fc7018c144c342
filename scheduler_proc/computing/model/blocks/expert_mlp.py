"""A mixture of experts. Kernels read the routes from memory, so that steps with this block are captured.

Without a kernel plain torch computes the experts one after another. That waits for the routes: nothing is captured, and
it is slow.

Shape legend: T tokens, E embedding size, X experts, K chosen experts of a token, R = T * K rows, F inner values of an
expert, I outputs of its first linear.
"""

from torch import Tensor

from kernels.arguments.routes import Routing
from kernels.operations.experts import combine_experts, gather_rows, route_tokens
from kernels.operations.swiglu_oai import swiglu_oai
from scheduler_proc.computing.model.blocks import dense_mlp
from scheduler_proc.computing.model.blocks.context import BlockContext
from scheduler_proc.computing.model.blocks.weights import Weights, pop_experts, pop_linear, pop_tensor
from scheduler_proc.computing.model.expert_description import ExpertMlpDescription
from scheduler_proc.computing.model.workspace import Activations, fit
from scheduler_proc.computing.step.rows import StepRows


class Block:
    def __init__(self, layer: str, mlp: ExpertMlpDescription, weights: Weights, context: BlockContext):
        self._mlp = mlp
        self._parallel = context.parallel
        self._routing = Routing(
            num_chosen=mlp.num_chosen,
            is_renormalized=mlp.is_renormalized,
            score=mlp.score,
            num_groups=mlp.num_groups,
            num_chosen_groups=mlp.num_chosen_groups,
            num_best_of_group=mlp.num_best_of_group,
            scale=mlp.share_scale,
        )
        self._correction_X = pop_tensor(weights, f"{layer}.router_correction") if mlp.has_correction else None
        self._router = pop_linear(weights, f"{layer}.router")
        self._scales = pop_tensor(weights, f"{layer}.router.scales").float() if mlp.has_scales else None
        self._linear_in = pop_experts(weights, f"{layer}.experts_in")
        self._linear_out = pop_experts(weights, f"{layer}.experts_out", context.parallel)
        self._shared = dense_mlp.Block(f"{layer}.shared", mlp.shared, weights, context) if mlp.shared else None
        self._shared_gate = pop_linear(weights, f"{layer}.shared_gate") if mlp.has_shared_gate else None

    def _activate(self, inner_RI: Tensor, out_RF: Tensor | None) -> Tensor:
        mlp = self._mlp
        if mlp.activation == "swiglu_oai":
            return swiglu_oai(inner_RI, mlp.swiglu_alpha, mlp.swiglu_limit, out_RF)
        return dense_mlp.ACTIVATIONS[mlp.activation](inner_RI, out_RF)

    def __call__(self, normed_TE: Tensor, rows: StepRows, room: Activations, router_TE: Tensor | None = None) -> Tensor:
        """See `Mlp`. The router reads `router_TE`, if given."""
        mlp, (num_tokens, hidden_size) = self._mlp, normed_TE.shape
        if num_tokens == 0:
            return normed_TE  # the last layer of a step of prompt chunks that end no prompt
        num_rows, num_logits = num_tokens * mlp.num_chosen, num_tokens * mlp.num_experts
        memory = None if room.routes is None else room.routes.view(-1)

        def take(begin: int, *shape: int) -> Tensor | None:
            """Returns a tensor in the words of `room.routes` from `begin` on."""
            count = shape[0] * shape[1]
            return None if memory is None else memory[begin : begin + count].view(normed_TE.dtype)[:count].view(shape)

        def of_rows(part: Tensor | None, size: int) -> Tensor | None:
            fitted = fit(part, size * mlp.num_chosen)
            return None if fitted is None else fitted.view(num_rows, size)

        gate_T1, update_TE = None, room.update
        if self._shared is not None:
            update_TE = self._shared(normed_TE, rows, room)
        if self._shared_gate is not None:
            gate_T1 = self._shared_gate(normed_TE, rows, take(num_logits, num_tokens, 1))
        logits_TX = self._router(
            normed_TE if router_TE is None else router_TE, rows, take(0, num_tokens, mlp.num_experts)
        )
        own = None if memory is None else memory[num_logits + num_tokens :]
        routes = route_tokens(logits_TX, self._routing, own, self._correction_X, self._scales)
        x_RE = gather_rows(normed_TE, routes, of_rows(room.copies, hidden_size))
        inner_RI = self._linear_in(x_RE, routes, of_rows(room.inner, mlp.in_size))
        gated_RF = self._activate(inner_RI, of_rows(room.gated, mlp.size))
        out_RE = self._linear_out(gated_RF, routes, x_RE)
        # The shared expert's output is that of all ranks: one of them adds it.
        shared_TE = None if self._shared is None or self._parallel.rank else update_TE
        gate_T1 = None if shared_TE is None else gate_T1
        return self._parallel.all_reduce(combine_experts(out_RE, routes, shared_TE, gate_T1, update_TE))
