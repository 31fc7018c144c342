"""A mixture of experts. Kernels read the routes from memory, so that steps with this block are captured.

Without a kernel plain torch computes the experts one after another. That waits for the routes: nothing is captured, and
it is slow.

Shape legend: T tokens, E embedding size, X experts, K chosen experts of a token, R = T * K rows, F inner values of an
expert, I outputs of its first linear.
"""

from torch import Tensor

from kernels.operations.experts import all_to_one_expert, combine_experts, gather_rows, route_tokens
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
        num_tokens = len(normed_TE)
        if num_tokens == 0:
            return normed_TE  # the last layer of a step of prompt chunks that end no prompt
        router_TE = normed_TE if router_TE is None else router_TE
        logits_TX = self._router(router_TE, rows, self._take(room, 0, num_tokens, self._mlp.num_experts))
        finish = None
        if self._mlp.is_on_host:
            assert rows.step.host is not None
            has_shared = self._shared is not None
            finish = rows.step.host.begin(normed_TE, logits_TX, self._compute_on_host, is_overlapped=has_shared)
        shared_TE, gate_T1 = None, None
        if self._shared is not None:
            shared_TE = self._shared(normed_TE, rows, room)
        if self._shared_gate is not None:
            gate_T1 = self._shared_gate(normed_TE, rows, self._take(room, logits_TX.numel(), num_tokens, 1))
        if self._parallel.rank:  # the shared expert's output is that of all ranks: one of them adds it
            shared_TE = gate_T1 = None
        if finish is None:
            return self._parallel.all_reduce(self._compute(normed_TE, logits_TX, room, shared_TE, gate_T1))
        update_TE = finish()
        if shared_TE is None:
            return update_TE
        return combine_experts(update_TE, all_to_one_expert(update_TE), shared_TE, gate_T1, room.update)

    def _compute_on_host(self, room: Activations) -> None:
        """Computes `room.update` from `room.normed` and the logits at the begin of `room.routes`."""
        assert room.normed is not None
        assert room.update is not None
        logits_TX = self._take(room, 0, len(room.normed), self._mlp.num_experts)
        assert logits_TX is not None
        update_TE = self._compute(room.normed, logits_TX, room)
        if update_TE is not room.update:
            room.update.copy_(update_TE)

    def _compute(
        self,
        normed_TE: Tensor,
        logits_TX: Tensor,
        room: Activations,
        shared_TE: Tensor | None = None,
        gate_T1: Tensor | None = None,
    ) -> Tensor:
        """Returns the outputs of the chosen experts and, if given, of the shared one."""
        mlp, num_rows = self._mlp, len(normed_TE) * self._mlp.num_chosen

        def of_rows(part: Tensor | None, size: int) -> Tensor | None:
            fitted = fit(part, size * mlp.num_chosen)
            return None if fitted is None else fitted.view(num_rows, size)

        own = None if room.routes is None else room.routes.view(-1)[logits_TX.numel() + len(normed_TE) :]
        routes = route_tokens(logits_TX, mlp, own, self._correction_X, self._scales)
        x_RE = gather_rows(normed_TE, routes, of_rows(room.copies, normed_TE.shape[1]))
        inner_RI = self._linear_in(x_RE, routes, of_rows(room.inner, mlp.in_size))
        gated_RF = self._activate(inner_RI, of_rows(room.gated, mlp.size))
        out_RE = self._linear_out(gated_RF, routes, x_RE)
        return combine_experts(out_RE, routes, shared_TE, gate_T1, room.update)

    @staticmethod
    def _take(room: Activations, begin: int, *shape: int) -> Tensor | None:
        """Returns a tensor of activations in the words of `room.routes` from `begin` on."""
        if room.routes is None or room.normed is None:
            return None
        count = shape[0] * shape[1]
        return room.routes.view(-1)[begin : begin + count].view(room.normed.dtype)[:count].view(shape)
