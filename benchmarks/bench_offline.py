"""The usual offline benchmark: 256 sequences at once, inputs and outputs of 100 to 1,024 tokens, without a server.

    python -m benchmarks.bench_offline --shape qwen3-0.6b
    python -m benchmarks.bench_offline --shape llama-3-8b --shared-prefix 512 --no-overlap --json FILE

The workload is that of nano-vllm and mini-sglang (random.seed(0), temperature 0.6, no end token), so the numbers
compare. Weights are random, which does not change the timing. All server flags work: --enforce-eager, --no-overlap,
--no-shared-prefix-attention, --max-num-seqs, --kv-cache-memory-gb and so on. Prints output tok/s and their share of the
device's limit, from a floor measured in the same run. The floor counts the bytes that must be read and the products
that must be computed: in each decode step all weights once, all rows' K and V (a shared prefix once), and the logits.
Launches, planning and sampling count as nothing.
"""

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.kernels.measure import copy_bandwidth, describe, gpu_facts, product_rate
from benchmarks.model_shapes import (
    SHAPES,
    TEMPERATURE,
    configured_shape,
    kv_bytes,
    max_positions,
    read_shape,
    weight_bytes,
)
from benchmarks.result_file import write_result
from messages.errors import SluiceError, UsageError
from messages.ring.requests import SamplingParams
from scheduler_proc.computing.backends.backend import Place
from scheduler_proc.computing.backends.registry import find_backend
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.kv_cache.kv_tensors import page_bytes
from scheduler_proc.computing.model.description import ModelDescription
from scheduler_proc.offline import OfflineEngine

LIMIT_ROUNDS = 5

Workload = tuple[list[list[int]], list[SamplingParams]]


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request, `num_shared` of each prompt alike; `max_rows` run in one step."""

    inputs: list[int]
    outputs: list[int]
    num_shared: int
    max_rows: int

    @property
    def num_new_input_tokens(self) -> int:
        """Tokens of all prompts that must be computed; what is shared, once."""
        return sum(self.inputs) - self.num_shared * (len(self.inputs) - 1)

    @property
    def num_decode_steps(self) -> int:
        """The first token of a request comes with its prompt."""
        return max(max(self.outputs) - 1, -(-sum(count - 1 for count in self.outputs) // self.max_rows))


@dataclass(frozen=True)
class DeviceLimits:
    bytes_per_s: float
    flop_per_s: float


def floor_s(
    model: ModelDescription, itemsize: int, lengths: Lengths, limits: DeviceLimits, token_bytes: int | None = None
) -> dict[str, float]:
    """Returns the seconds of each part, and of all as `total`.

    `token_bytes`: the size of a token's K and V, if it does not follow from `itemsize`.
    """
    # Output token i of a request (from 1) is computed from the i - 1 before it and the prompt.
    num_keys = sum(
        (count - 1) * (num_input - lengths.num_shared) + (count - 1) * count // 2
        for num_input, count in zip(lengths.inputs, lengths.outputs, strict=True)
    )
    num_keys += lengths.num_shared * lengths.num_decode_steps
    num_rows = sum(lengths.outputs)
    head_parameters = model.vocab_size * model.hidden_size
    layer_parameters = weight_bytes(model, 1) - head_parameters
    prefill_flop = 2 * layer_parameters * lengths.num_new_input_tokens + 2 * head_parameters * len(lengths.inputs)
    parts = {
        "weights": weight_bytes(model, itemsize) * lengths.num_decode_steps / limits.bytes_per_s,
        "kv": (token_bytes or kv_bytes(model, itemsize)) * num_keys / limits.bytes_per_s,
        "logits": 2 * itemsize * model.vocab_size * num_rows / limits.bytes_per_s,
        "prefill": prefill_flop / limits.flop_per_s,
    }
    return parts | {"total": sum(parts.values())}


SHORTEST, LONGEST = 100, 1024
LARGEST_PROMPT_ID = 10_000


def offline_workload(num_sequences: int = 256, longest: int = LONGEST) -> tuple[list[list[int]], list[int]]:
    """Returns prompts and numbers of output tokens, the same in every run: their calls, in their order, of seed 0."""
    chooser = random.Random(0)
    shortest = min(SHORTEST, longest)
    prompts = [
        [chooser.randint(0, LARGEST_PROMPT_ID) for _ in range(chooser.randint(shortest, longest))]
        for _ in range(num_sequences)
    ]
    return prompts, [chooser.randint(shortest, longest) for _ in range(num_sequences)]


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b", help="default: %(default)s")
    add("--num-sequences", type=int, default=256, help="default: %(default)s")
    add("--max-tokens", type=int, default=LONGEST, help="longest input and longest output (default: %(default)s)")
    add("--shared-prefix", type=int, default=0, metavar="N", help="common first tokens of all prompts (default: none)")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, 1 if the model cannot be run, 2 on bad usage."""
    options, server_flags = make_parser().parse_known_args(arguments)
    try:
        result = run(options, server_flags)
    except SluiceError as error:
        print(f"bench_offline: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    print(json.dumps(result, indent=1))
    print(
        f"{options.shape}: {result['output_tok_per_s']:,.0f} output tok/s, {result['fraction_of_floor']:.1%} of the "
        f"{result['floor_tok_per_s']:,.0f} that {result['device']} allows"
    )
    if options.json:
        write_result(options.json, "offline", result)
    return 0


class LoadTimes:
    """Shows the progress of loading, and measures it and what of it the captures took, the rehearsal's included."""

    def __init__(self) -> None:
        self.seconds = {"load_s": 0.0, "capture_s": 0.0}
        self._begin_s = self._last_s = time.perf_counter()
        self._is_capturing = False

    def report(self, text: str, fraction: float | None) -> None:
        self._pass()
        self._is_capturing = text.startswith("capturing")
        print(f"\r{text:<60}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        self._pass()
        self.seconds["load_s"] = self._last_s - self._begin_s
        print(file=sys.stderr)

    def since_end(self) -> float:
        return time.perf_counter() - self._last_s

    def _pass(self) -> None:
        now_s = time.perf_counter()
        if self._is_capturing:
            self.seconds["capture_s"] += now_s - self._last_s
        self._last_s = now_s


def run(options: argparse.Namespace, server_flags: list[str]) -> dict:
    """Loads the model and runs the workload once; raises `SluiceError`."""
    shape = SHAPES[options.shape]
    longest = min(options.max_tokens, max_positions(shape) // 2)
    if options.num_sequences < 1 or longest < 1 or not 0 <= options.shared_prefix < longest:
        raise UsageError("--num-sequences and --max-tokens must be at least 1, --shared-prefix less than --max-tokens")
    prompts, params = make_workload(options.num_sequences, longest, options.shared_prefix)
    with configured_shape(shape, ["--max-model-len", str(2 * longest), *server_flags]) as config:
        backend = find_backend(config.model)
        placement = backend.find_placement(config.model, config.cache, HfConfig(shape))
        backend.bind(config, placement, Place(engine=1))
        limits = measure_limits(placement.device)
        load = LoadTimes()
        engine = OfflineEngine(config, load.report)
        load.end()
    engine.generate([[1, 2, 3]], [SamplingParams(1, temperature=TEMPERATURE, ignore_eos=True)])
    first_token_s = load.since_end()
    num_steps = engine.gauges["steps"]
    begin_s = time.perf_counter()
    outputs = engine.generate(prompts, params)
    seconds = time.perf_counter() - begin_s
    lengths = Lengths(
        [len(prompt) for prompt in prompts],
        [len(output.token_ids) for output in outputs],
        options.shared_prefix,
        config.scheduling.max_num_seqs,
    )
    assert lengths.outputs == [own.max_tokens for own in params]
    facts = {
        "shape": options.shape,
        "device": describe(placement.device),
        **(gpu_facts(placement.device) if backend.name == "cuda" else {"torch": str(torch.__version__)}),
        "flags": server_flags,
        "degraded": engine.degraded,
        **load.seconds,
        "first_token_s": first_token_s,
        "dtype": placement.dtype_name,
        "num_sequences": options.num_sequences,
        "shared_prefix_tokens": options.shared_prefix,
    }
    decoder_config = read_shape(shape, config.facts.max_model_len)
    token_bytes = page_bytes(decoder_config, 1, placement)
    parts = floor_s(decoder_config, placement.dtype.itemsize, lengths, limits, token_bytes)
    return facts | summarize(lengths, seconds, engine.gauges["steps"] - num_steps, parts, limits)


def make_workload(num_sequences: int, longest: int, num_shared: int) -> Workload:
    """Returns prompts, whose first `num_shared` tokens are alike, and parameters, the same in every run."""
    prompts, output_lens = offline_workload(num_sequences, longest)
    shared = list(range(num_shared))
    # A prompt that is no longer than what is shared gets one token of its own behind it.
    prompts = [shared + (prompt[num_shared:] or prompt[:1]) for prompt in prompts]
    params = [
        SamplingParams(max_tokens, temperature=TEMPERATURE, seed=seed, ignore_eos=True)
        for seed, max_tokens in enumerate(output_lens)
    ]
    return prompts, params


def measure_limits(device: torch.device) -> DeviceLimits:
    return DeviceLimits(copy_bandwidth(LIMIT_ROUNDS, device) * 1e9, product_rate(LIMIT_ROUNDS, device) * 1e9)


def summarize(
    lengths: Lengths, seconds: float, num_steps: float, parts: dict[str, float], limits: DeviceLimits
) -> dict:
    num_output = sum(lengths.outputs)
    return {
        "num_input_tokens": sum(lengths.inputs),
        "num_output_tokens": num_output,
        "num_steps": num_steps,
        "seconds": seconds,
        "output_tok_per_s": num_output / seconds,
        "floor_s": parts,
        "floor_tok_per_s": num_output / parts["total"],
        "fraction_of_floor": parts["total"] / seconds,
        "copy_gb_per_s": limits.bytes_per_s / 1e9,
        "product_tflop_per_s": limits.flop_per_s / 1e12,
    }


if __name__ == "__main__":
    raise SystemExit(main())
