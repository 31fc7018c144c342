"""The parts of `make bench-gpu`, the most valuable first: what a short time on a GPU should show before all else."""

from dataclasses import dataclass

from benchmarks.result_file import ROOT

PART_TIMEOUT_S = 150.0


@dataclass(frozen=True)
class Part:
    """One process, which writes a result file; `quick` are its flags for a trial without a GPU."""

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
"""Decode steps that are bound by launches and weights."""
QUICK = ("--kv-cache-dtype", "auto")
"""The last one counts: a trial has no GPU."""
QUICK_OFFLINE = (*QUICK, "--num-sequences", "2", "--max-tokens", "16", "--shared-prefix", "8")

HOST_ONLY = ("bench_packed_linear", "bench_quantized_linear")
"""Benchmarks of operations that have no form on a GPU."""


def list_parts() -> list[Part]:
    """Returns all parts in order; their names are those of the results, and of `--only`."""
    return [
        Part("golden", "check_golden", quick=("--quick", "--cpu-threads", "1")),
        step(MAIN),
        *(offline(MAIN, suffix, flags) for suffix, flags in OFFLINE_VARIANTS.items()),
        tuning("decode", "Qwen3-0.6B"),
        tuning("prefill", "Qwen3-0.6B"),
        *list_kernel_parts(),
        step("llama-3-8b"),
        offline("llama-3-8b"),
        tuning("decode", "Llama-3-8B"),
        offline("qwen3-14b"),
        Part(f"http_{MAIN}", "bench_http", ("--shape", MAIN)),
        step("gpt2-124m"),
        offline("gpt2-124m"),
        *(step(shape, "_eager", ("--enforce-eager",)) for shape in (MAIN, "gpt2-124m", "llama-3-8b")),
        *(step(shape, "_few_rows", FEW_ROWS) for shape in (MAIN, "llama-3-8b")),
        *(Part(f"transformers_{shape}", "bench_transformers", ("--shape", shape)) for shape in (MAIN, "llama-3-8b")),
    ]


def list_kernel_parts() -> list[Part]:
    """Returns the device's limits, attention, and then every other kernel's benchmark, and that of planning it."""
    first = ("bench_limits", "bench_paged_decode", "bench_paged_prefill", "bench_draw", "bench_draw_filtered")
    files = sorted(path.stem for path in (ROOT / "benchmarks" / "kernels").glob("bench_*.py"))
    names = [*first, *(name for name in files if name not in (*first, *HOST_ONLY))]
    quick = ("--quick", "--threads", "1")
    parts = [Part(f"kernel_{name.removeprefix('bench_')}", f"kernels.{name}", quick=quick) for name in names]
    return [*parts, Part("decode_plan", "bench_decode_plan", quick=quick)]


def step(shape: str, suffix: str = "", flags: tuple[str, ...] = ()) -> Part:
    """A step's own time."""
    return Part(
        f"step_{shape}{suffix}", "bench_step", ("--shape", shape, *flags), ("--quick", *QUICK, "--cpu-threads", "1")
    )


def offline(shape: str, suffix: str = "", flags: tuple[str, ...] = ()) -> Part:
    """The offline benchmark."""
    return Part(f"offline_{shape}{suffix}", "bench_offline", ("--shape", shape, *flags), QUICK_OFFLINE)


def tuning(operation: str, model: str) -> Part:
    """The sweep of an operation's launch parameters; it ends itself before its time is over."""
    budget_s = str(PART_TIMEOUT_S - 40)
    flags = (operation, "--model", model, "--budget-s", budget_s)
    return Part(f"tuning_{operation}_{model.lower()}", "tune_launches", flags)
