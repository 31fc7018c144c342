"""The gain and cost of --quantization: perplexity of real weights, speed and memory of a known shape.

    python -m benchmarks.experiments.quantization_0018.bench_quantization --models DIR --text FILE --shape gpt2-124m

Perplexity is that of the end of a text, requested from a server in each format; with --int8-steps also in int8 with
fewer steps. Speed and memory are those of servers that take turns.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.experiments.quantization_0018.text_score import score_text
from benchmarks.load.batch_client import WORKLOADS, Server, measure
from benchmarks.load.server_facts import ask_server
from benchmarks.model_shapes import SHAPES, served_shape
from benchmarks.result_file import write_result
from benchmarks.server_process import memory, started_server
from kernels.cpu.build import PREBUILT, find_compiler, prebuilt_name
from messages.errors import SluiceError

START_TIMEOUT_S = 600.0
FORMATS: dict[str, list[str]] = {
    "float32": ["--dtype", "float32"],
    "bfloat16": ["--dtype", "bfloat16"],
    "int8": ["--dtype", "bfloat16", "--quantization", "int8"],
    "int4": ["--dtype", "bfloat16", "--quantization", "int4"],
}
TIMED_FORMATS = ("bfloat16", "int8", "int4")
PASSAGE_TOKENS = 512


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="*", type=Path, default=[], help="directories of models whose perplexity is measured")
    add("--text", type=Path, help="the text, in UTF-8")
    add(
        "--end-bytes",
        type=int,
        default=89_281,
        help="bytes of its end to score (default: the part that the bundled model never saw)",
    )
    about_steps = "numbers of codes of int8 for the mean magnitude of a token, instead of all formats"
    add("--int8-steps", nargs="+", type=int, default=[], metavar="STEPS", help=about_steps)
    add("--shape", choices=SHAPES, help="the shape whose speed and memory are measured")
    add(
        "--tokenizer", type=Path, default=Path("../shared/tokenizers/gpt2"), help="its tokenizer (default: %(default)s)"
    )
    add(
        "--workloads",
        nargs="+",
        choices=WORKLOADS,
        default=["W1", "W2", "W3"],
        help="default: %(default)s",
    )
    add("--rounds", type=int, default=5, help="of each workload (default: 5)")
    add("--cpu-threads", type=int, default=0, help="of the servers; 0: as they choose (default)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if a server cannot be measured."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.models and options.text is None:
        parser.error("--models needs --text")
    if options.int8_steps and (PREBUILT / prebuilt_name()).exists():
        parser.error(f"--int8-steps: servers would use {PREBUILT / prebuilt_name()}; move it away")
    flags = ["--cpu-threads", str(options.cpu_threads), "--log-level", "warning"]
    try:
        perplexities = [
            line
            for model in options.models
            for line in (
                measure_steps(model, read_end(options), flags, options.int8_steps)
                if options.int8_steps
                else measure_perplexity(model, read_end(options), flags, FORMATS)
            )
        ]
        speed = measure_speed(options, flags) if options.shape else None
    except SluiceError as error:
        print(f"bench_quantization: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "quantization", {"perplexity": perplexities, "speed": speed})
    return 0


def read_end(options: argparse.Namespace) -> str:
    return options.text.read_bytes()[-options.end_bytes :].decode("utf-8", errors="ignore")


def measure_perplexity(
    model: Path,
    text: str,
    flags: Sequence[str],
    formats: Mapping[str, Sequence[str]],
    max_passage_tokens: int = PASSAGE_TOKENS,
) -> list[dict]:
    """Returns a line for each format."""
    lines: list[dict] = []
    for name, format_flags in formats.items():
        model_flags = ["--model", str(model), "--served-model-name", model.name, *format_flags, *flags]
        with started_server(model_flags, START_TIMEOUT_S) as (_, target):
            passage_tokens = min(max_passage_tokens, ask_server(target).max_model_len - 1)
            score = score_text(target, model.name, text, passage_tokens)
        lines.append(
            {"model": model.name, "format": name, "passage_tokens": passage_tokens, "num_tokens": score.num_tokens}
        )
        lines[-1] |= {"nats": score.nats, "perplexity": score.perplexity}
        print(f"{model.name} {name}: perplexity {score.perplexity:.4f} ({score.num_tokens:,} tokens)", flush=True)
    return lines


def measure_steps(model: Path, text: str, flags: Sequence[str], all_steps: Sequence[int]) -> list[dict]:
    """Returns a line for each number of steps."""
    lines: list[dict] = []
    compiler = find_compiler()
    for steps in all_steps:
        os.environ["CC"] = shlex.join([*compiler, f"-DQUANT_STEPS={steps}.0f"])
        lines += measure_perplexity(model, text, flags, {f"int8 of {steps} steps": FORMATS["int8"]})
    os.environ["CC"] = shlex.join(compiler)
    return lines


def measure_speed(options: argparse.Namespace, flags: Sequence[str]) -> dict:
    """Returns the workloads' figures, by format, and the memory of each server's scheduler before them."""
    shape = SHAPES[options.shape]
    with ExitStack() as stack:
        shape_flags = stack.enter_context(served_shape(shape, options.tokenizer))
        servers, memory_mib = {}, {}
        for name in TIMED_FORMATS:
            model_flags = [*shape_flags, *FORMATS[name], *flags]
            process, target = stack.enter_context(started_server(model_flags, START_TIMEOUT_S))
            servers[name] = Server(target)
            memory_mib[name] = next(found.rss_mib for found in memory(process.pid) if found.command == "scheduler_proc")
        lines = measure(servers, options.workloads, options.rounds, int(str(shape["vocab_size"])))
    for line in lines:
        figures = ", ".join(f"{name} {value:,.1f}" for name, value in line["median"].items())
        print(f"{line['name']} {line['about']}: {figures} {line['unit']}", flush=True)
    print(f"scheduler's memory, MiB: {memory_mib}")
    return {"shape": options.shape, "scheduler_rss_mib": memory_mib, "workloads": lines}


if __name__ == "__main__":
    raise SystemExit(main())
