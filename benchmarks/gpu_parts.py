"""The parts of `make bench-gpu`, the most valuable first, because time on a GPU is short."""

from dataclasses import dataclass

PART_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Part:
    """One process, which writes one result file. `quick` holds the extra flags of a trial without a GPU."""

    name: str
    module: str
    flags: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    timeout_s: float = PART_TIMEOUT_S


MAIN = "qwen3-0.6b"
OFFLINE_VARIANTS: dict[str, tuple[str, ...]] = {
    "": (),
    "_no_overlap": ("--no-overlap",),
    "_eager": ("--enforce-eager",),
    "_shared_prefix": ("--shared-prefix", "400"),
    "_shared_prefix_read_by_each": ("--shared-prefix", "400", "--no-shared-prefix-attention"),
    "_fp8_cache": ("--kv-cache-dtype", "fp8"),
}
FEW_ROWS = ("--rows", "1", "8", "16")
"""Batch sizes at which launches and weights bound a decode step."""
DEPENDENT = ("--fuse", "few_rows", "prefetch", "dependent")
FUSED = {
    "_fused": ("--fuse", "few_rows"),
    "_fused_prefetch": ("--fuse", "few_rows", "prefetch"),
    "_fused_dependent": DEPENDENT,
    "_fused_greedy": (*DEPENDENT, "--temperature", "0"),
    "_fused_argmax": (*DEPENDENT, "argmax", "--temperature", "0"),
}
"""What steps of few rows may use in addition (`kernels/gpu/fusions.py`), by the suffix of their parts."""
LONG_PROMPTS = {
    "": ("--tokens", "8192", "32768", "--steps", "5"),
    "_behind_120k": ("--tokens", "8192", "--before", "122880", "--steps", "3"),
}
"""Prompts, by the suffix of their parts, which are measured without the kernel of `long_prompts` and with it."""
FP8_WEIGHTS = {
    "_fp8": ("--quantization", "fp8"),
    "_fp8_codes": ("--quantization", "fp8", "--fuse", "fp8_products"),
}
"""fp8 weights, multiplied as numbers of 16 bits and as codes, by the suffix of their parts."""
QUICK = ("--kv-cache-dtype", "auto", "--quantization", "none")
"""Flags of a trial without a GPU. They follow the part's own flags and override them."""
QUICK_OFFLINE = (*QUICK, "--num-sequences", "2", "--max-tokens", "16", "--shared-prefix", "8")

KERNELS = (
    *("limits", "paged_decode", "paged_prefill", "draw", "draw_filtered"),
    *(
        "apply_bitmask",
        "experts",
        "few_rows_linear",
        "filter_top",
        "gated_delta",
        "gelu",
        "greedy",
        "layer_norm",
        "mamba_scan",
        "rms_norm",
        "scaled_linear",
    ),
    *("rotate_store", "silu_mul", "top_logprobs"),
)
"""The operations of `benchmarks.kernels` that run on a GPU: the device's limits, attention, then the others."""


def list_parts() -> list[Part]:
    """Returns all parts in order. Results and `--only` use their names."""
    return [
        Part("golden", "check_golden", quick=("--quick", "--cpu-threads", "1")),
        Part("deterministic", "experiments.deterministic_0137.check_deterministic", ("--shape", MAIN)),
        step(MAIN),
        *(step(MAIN, suffix, ("--rows", "1", "8", *flags)) for suffix, flags in FUSED.items()),
        prefill(MAIN),
        *(
            prefill(MAIN, f"_long{suffix}{name}", (*flags, *fused))
            for suffix, flags in LONG_PROMPTS.items()
            for name, fused in (("", ()), ("_fused", ("--fuse", "long_prompts")))
        ),
        *(make(MAIN, "_deterministic", ("--deterministic",)) for make in (step, prefill)),
        *(offline(MAIN, suffix, flags) for suffix, flags in OFFLINE_VARIANTS.items()),
        step(MAIN, "_fp8_cache", OFFLINE_VARIANTS["_fp8_cache"]),
        step(MAIN, "_fp8_cache_codes", (*OFFLINE_VARIANTS["_fp8_cache"], "--fuse", "fp8_attention")),
        tuning("decode", "Qwen3-0.6B"),
        tuning("decode_fp8", "Qwen3-0.6B"),
        tuning("decode_codes", "Qwen3-0.6B"),
        tuning("prefill", "Qwen3-0.6B"),
        tuning("long_prefill", "Qwen3-0.6B"),
        tuning("few_rows", "Qwen3-0.6B"),
        *list_kernel_parts(),
        step("llama-3-8b"),
        *(step("llama-3-8b", suffix, ("--rows", "1", "8", *flags)) for suffix, flags in FUSED.items()),
        prefill("llama-3-8b"),
        *(make("llama-3-8b", suffix, flags) for make in (step, prefill) for suffix, flags in FP8_WEIGHTS.items()),
        offline("llama-3-8b"),
        tuning("decode", "Llama-3-8B"),
        offline("qwen3-14b"),
        Part(f"http_{MAIN}", "bench_http", ("--shape", MAIN)),
        cpu_experts("qwen3-30b-a3b-4-layers", "all"),
        cpu_experts("qwen3-30b-a3b", "auto", ("--gpu-memory-utilization", "0.17")),
        step("gpt2-124m"),
        offline("gpt2-124m"),
        *(step(shape, "_eager", ("--enforce-eager",)) for shape in (MAIN, "gpt2-124m", "llama-3-8b")),
        *(step(shape, "_few_rows", FEW_ROWS) for shape in (MAIN, "llama-3-8b")),
        *(Part(f"transformers_{shape}", "bench_transformers", ("--shape", shape)) for shape in (MAIN, "llama-3-8b")),
    ]


def list_kernel_parts() -> list[Part]:
    """Returns a part for each kernel, and one for planning decode attention on the host."""
    quick = ("--quick", "--threads", "1")
    parts = [Part(f"kernel_{name}", "kernels", (name,), quick) for name in KERNELS]
    return [*parts, Part("decode_plan", "kernels", ("decode_plan",), quick)]


def step(shape: str, suffix: str = "", flags: tuple[str, ...] = ()) -> Part:
    """Returns the part that times a step."""
    return Part(
        f"step_{shape}{suffix}", "bench_step", ("--shape", shape, *flags), ("--quick", *QUICK, "--cpu-threads", "1")
    )


def cpu_experts(shape: str, asked: str, flags: tuple[str, ...] = ()) -> Part:
    """Returns the part that times a step with experts in the host's memory; 0.17 of an H200's memory is 24 GB."""
    flags = ("--shape", shape, "--rows", "1", "8", "32", "--cpu-experts", asked, *flags)
    quick = ("--quick", *QUICK, "--cpu-threads", "1", "--cpu-experts", "none")
    return Part(f"cpu_experts_{shape}", "bench_step", flags, quick, timeout_s=2 * PART_TIMEOUT_S)


def prefill(shape: str, suffix: str = "", flags: tuple[str, ...] = ()) -> Part:
    """Returns the part that times steps of one prompt."""
    quick = ("--quick", *QUICK, "--cpu-threads", "1")
    return Part(f"prefill_{shape}{suffix}", "bench_prefill", ("--shape", shape, *flags), quick)


def offline(shape: str, suffix: str = "", flags: tuple[str, ...] = ()) -> Part:
    """Returns the part that runs the offline benchmark."""
    return Part(f"offline_{shape}{suffix}", "bench_offline", ("--shape", shape, *flags), QUICK_OFFLINE)


def tuning(operation: str, model: str) -> Part:
    """Returns the part that sweeps an operation's launch parameters; its budget ends before its time limit."""
    budget_s = str(PART_TIMEOUT_S - 40)
    flags = (operation, "--model", model, "--budget-s", budget_s)
    return Part(f"tuning_{operation}_{model.lower()}", "tune_launches", flags)
