"""Norms, activations, the rotation with the cache write and recurrences, next to the device's bandwidth."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from benchmarks.kernels.cases import ModelCase, model_cases
from benchmarks.kernels.measure import Work, forms_of, of_operation
from kernels.arguments.few_rows import AddTo, Gate, PlainMatrix, RowNorm
from kernels.arguments.paged_kv import PagedKV
from kernels.arguments.rows import HeadNorms, RopeTables
from kernels.arguments.state_rows import StateDecay, StateRows
from kernels.operations.few_rows_linear import few_rows_linear
from kernels.operations.gated_delta import gated_delta
from kernels.operations.gelu import gelu, gelu_reference
from kernels.operations.layer_norm import layer_norm, layer_norm_reference
from kernels.operations.mamba_scan import mamba_scan
from kernels.operations.rms_norm import rms_norm, rms_norm_reference
from kernels.operations.rotate_store import rotate_store, rotate_store_reference
from kernels.operations.silu_mul import silu_mul, silu_mul_reference
from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES

GPT2_CASES = model_cases(("GPT-2 124M",))
LLAMA_CASES = model_cases(("Qwen3-0.6B", "Llama-3-8B", "Qwen3-14B"))
LAYER_NORM_EPS = 1e-5
RMS_NORM_EPS = 1e-6
PAGE_SIZE, NUM_POSITIONS = 16, 8192


def make_gelu(case: ModelCase, device: torch.device) -> Work:
    x = torch.randn(case.num_tokens, case.shape.mlp_size, device=device).bfloat16()
    return Work(
        forms_of("gelu", x, lambda: gelu(x, "tanh"), {"torch": lambda: gelu_reference(x, "tanh")}), 2 * x.nbytes
    )


def make_layer_norm(case: ModelCase, device: torch.device) -> Work:
    size = case.shape.embedding_size
    x, update = torch.randn(2, case.num_tokens, size, device=device).bfloat16()
    weight, bias = torch.randn(2, size, device=device).bfloat16()
    others = {"torch": lambda: layer_norm_reference(x, weight, bias, LAYER_NORM_EPS, update)}
    # Two operands are read, the sum and the norm of it written.
    return Work(
        forms_of("layer_norm", x, lambda: layer_norm(x, weight, bias, LAYER_NORM_EPS, update), others), 4 * x.nbytes
    )


def make_rms_norm(case: ModelCase, device: torch.device) -> Work:
    size = case.shape.embedding_size
    x, update = torch.randn(2, case.num_tokens, size, device=device).bfloat16()
    weight = torch.ones(size, dtype=torch.bfloat16, device=device)
    others = {
        "reference": lambda: rms_norm_reference(x, weight, RMS_NORM_EPS, update),
        "torch": lambda: functional.rms_norm(x.add_(update), (size,), weight, RMS_NORM_EPS),
    }
    # Two operands are read, the sum and the norm of it written.
    return Work(forms_of("rms_norm", x, lambda: rms_norm(x, weight, RMS_NORM_EPS, update), others), 4 * x.nbytes)


def make_rotate_store(case: ModelCase, device: torch.device) -> Work:
    """The norms of the heads are Qwen3's; Llama's shape is measured with them, too."""
    shape, num_tokens = case.shape, case.num_tokens
    num_all_heads = shape.num_heads + 2 * shape.num_kv_heads
    heads = torch.randn(num_tokens, num_all_heads, shape.head_dim, device=device).bfloat16()
    num_slots = -(-num_tokens // PAGE_SIZE) * PAGE_SIZE
    kv = torch.empty(2, num_slots, shape.num_kv_heads, shape.head_dim, dtype=torch.bfloat16, device=device)
    cache = PagedKV(kv[0], kv[1], PAGE_SIZE)
    angles = torch.rand(NUM_POSITIONS, shape.head_dim // 2, device=device)
    tables = RopeTables(angles.cos(), angles.sin())
    positions = torch.randint(NUM_POSITIONS, (num_tokens,), dtype=torch.int32, device=device)
    slots = torch.randperm(num_slots, device=device)[:num_tokens]
    weights = torch.ones(2, shape.head_dim, dtype=torch.bfloat16, device=device)
    norms = HeadNorms(weights[0], weights[1], RMS_NORM_EPS)
    arguments = (heads, cache, tables, positions, slots, norms)
    others = {"torch": lambda: rotate_store_reference(*arguments)}
    # All heads are read and written once, and a row of both tables is read.
    num_bytes = 2 * heads.nbytes + num_tokens * 2 * angles[0].nbytes
    forms = forms_of("rotate_store", heads, lambda: rotate_store(*arguments), others)
    return Work(forms, num_bytes)


def make_silu_mul(case: ModelCase, device: torch.device) -> Work:
    gate_up = torch.randn(case.num_tokens, 2 * case.shape.mlp_size, device=device).bfloat16()
    others = {"torch": lambda: silu_mul_reference(gate_up)}
    # Both halves are read, one is written.
    return Work(forms_of("silu_mul", gate_up, lambda: silu_mul(gate_up), others), gate_up.nbytes * 3 // 2)


@dataclass(frozen=True)
class ProductCase:
    """A product of a layer with few tokens, what follows it, and the norm before it unless it is added."""

    num_tokens: int
    num_inputs: int
    num_outputs: int
    is_added: bool

    def work(self, device: torch.device) -> Work:
        """The parts that the kernel replaces are measured as one captured step has them, one after another."""
        x = torch.randn(self.num_tokens, self.num_inputs, device=device).bfloat16()
        weight = torch.randn(self.num_outputs, self.num_inputs, device=device).bfloat16() / self.num_inputs**0.5
        scale, residual = torch.ones_like(x[0]), x.new_zeros(self.num_tokens, self.num_outputs)
        matrix, norm = PlainMatrix(weight, None), None if self.is_added else RowNorm(scale, RMS_NORM_EPS)
        then = AddTo(residual) if self.is_added else Gate("silu")

        def parts() -> object:
            if self.is_added:
                return residual.add_(functional.linear(x, weight))
            return silu_mul(functional.linear(rms_norm(x, scale, RMS_NORM_EPS), weight))

        forms = forms_of("few_rows_linear", x, lambda: few_rows_linear(x, matrix, norm, then), {"parts": parts})
        return Work(forms, weight.nbytes)


@dataclass(frozen=True)
class RecurrentCase:
    """Rows with as many tokens each. The states are float32 [heads, size, size]."""

    num_heads: int
    num_groups: int
    sizes: tuple[int, int]
    num_rows: int
    tokens_a_row: int

    def make_rows(self, device: torch.device) -> StateRows:
        """Returns rows that store their last state where they have read the first."""
        sources = torch.arange(self.num_rows, dtype=torch.int32, device=device)
        slots = torch.full((self.num_rows, self.tokens_a_row), -1, dtype=torch.int32, device=device)
        slots[:, -1] = sources
        if self.tokens_a_row == 1:
            return StateRows(self.num_rows, sources, sources[:0], sources[:0], slots.view(-1))
        lens = torch.full_like(sources, self.tokens_a_row)
        return StateRows(0, sources[:0], sources, lens, slots.view(-1))

    def work(self, name: str, value_size: int, device: torch.device) -> Work:
        first, second = self.sizes
        num_tokens, generator = self.num_rows * self.tokens_a_row, torch.Generator(device).manual_seed(0)
        width = self.num_heads * value_size + 2 * self.num_groups * (first * second // value_size)
        x = torch.randn(num_tokens, width, device=device, generator=generator).bfloat16()
        gates = torch.randn(num_tokens, 2 * self.num_heads, device=device, generator=generator).bfloat16()
        rates, biases = torch.rand(2, self.num_heads, device=device).mul_(-1)
        decay, rows = StateDecay(rates, biases), self.make_rows(device)
        states = torch.randn(self.num_rows, self.num_heads, first, second, device=device, generator=generator)
        out = x.new_empty(num_tokens, self.num_heads * value_size)
        steps, skip = gates[:, : self.num_heads], biases
        launchers = {
            "gated_delta": lambda: gated_delta(x, gates, decay, states, rows, out_TN=out),
            "mamba_scan": lambda: mamba_scan(x, steps, decay, skip, states, rows, out),
        }
        # Each state is read and written once.
        return Work(forms_of(name, x, launchers[name], {}), x.nbytes + out.nbytes + 2 * states.nbytes)


ROWS = ((1, 1), (16, 1), (64, 1), (1, 512), (8, 2048))
DELTA_CASES, MAMBA_CASES = (
    {
        device: {
            f"{rows} x {tokens} tokens, {heads} heads of {sizes[0]} x {sizes[1]}": RecurrentCase(
                heads, groups, sizes, rows, tokens
            )
            for rows, tokens in (ROWS if device == "cuda" else ROWS[:4])
        }
        for device in ("cpu", "cuda")
    }
    for heads, groups, sizes in ((16, 16, (128, 128)), (48, 1, (64, 128)))
)
"""One layer of Qwen3.5-0.8B and of Granite 4.0-H Micro."""


PRODUCT_CASES = {
    f"{model} {what}, {num_tokens} tokens": ProductCase(num_tokens, *sizes, is_added=what != "gate")
    for model in ("Qwen3-0.6B", "Llama-3-8B")
    for shape in [MODEL_SHAPES[model]]
    for what, sizes in (
        ("gate", (shape.embedding_size, 2 * shape.mlp_size)),
        ("down", (shape.mlp_size, shape.embedding_size)),
        ("out", (shape.num_heads * shape.head_dim, shape.embedding_size)),
    )
    for num_tokens in (1, 8)
}


BENCHMARKS = {
    "few_rows_linear": of_operation(
        "a product of few tokens with what is around it",
        {"cpu": PRODUCT_CASES, "cuda": PRODUCT_CASES},
        lambda case, device: case.work(device),
    ),
    "gated_delta": of_operation(
        "the recurrence of Gated DeltaNet",
        DELTA_CASES,
        lambda case, device: case.work("gated_delta", case.sizes[1], device),
    ),
    "mamba_scan": of_operation(
        "the recurrence of Mamba-2", MAMBA_CASES, lambda case, device: case.work("mamba_scan", case.sizes[0], device)
    ),
    "gelu": of_operation("GELU", GPT2_CASES, make_gelu),
    "layer_norm": of_operation("residual addition and layer norm", GPT2_CASES, make_layer_norm),
    "rms_norm": of_operation("residual addition and RMS norm", LLAMA_CASES, make_rms_norm),
    "rotate_store": of_operation("norm of the heads, rotation and cache write", LLAMA_CASES, make_rotate_store),
    "silu_mul": of_operation("the gated activation", LLAMA_CASES, make_silu_mul),
}
