"""What checkpoints of recurrent states are worth: chats of a trace with Qwen3.5, most layers of which are recurrent.

    python -m benchmarks.experiments.checkpoints_0114.bench_chats TRACE --json FILE

Hits: the scheduler serves one in twelve chats of a Mooncake trace, of full length and in the trace's rhythm, without
computing. Pages and states are those of Qwen3.5-0.8B, in memory of several sizes. With "full attention" the same
memory holds pages only, and a prompt continues after any of them: this is the upper bound for a model of recurrent
layers.

Time to first token: schedulers with and without prefix caching serve chats of several turns one after another, with
the first layers of Qwen3.5-0.8B (three of Gated DeltaNet and one of attention) and random weights. The lengths of
prompts and answers are those of the trace. The clock is the CPU time of one thread.

Streams: 64 of these chats at once, in a small KV cache. The memory of the process is compared with its budget.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.checkpoints_0114.chats import Served, Turn, read_chats, serve_chats
from benchmarks.model_shapes import configured_shape, make_shape
from benchmarks.result_file import write_result
from extras.whatif.drive import SkippingClock
from messages.errors import SluiceError
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.offline import no_report

SHAPE = "qwen3.5-0.8b"
CONTEXT = 131_072
VOCAB_SIZE = 50_000
MEMORY_GB = (8.0, 16.0, 32.0)
TOKENS_PER_S = 20_000
"""Of the simulated device, for the tokens of prompts; a step takes `STEP_S` more."""
STEP_S = 0.01
PAGE_SIZE = 16
LAYERS = 4
TTFT_CONTEXT, TTFT_CHATS, TTFT_TURNS = 8192, 12, 3
NUM_STREAMS = 64
SIDES = {"without": ["--no-enable-prefix-caching"], "with": []}


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the trace cannot be read or the model cannot be served."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("trace", type=Path, help="a Mooncake trace, as conversation_trace.jsonl")
    add("--one-in", type=int, default=12, help="for hits, serve one in this many chats (default: %(default)s)")
    add("--memory-gb", type=float, nargs="+", default=list(MEMORY_GB), help="for hits (default: %(default)s)")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    try:
        results = {name: PARTS[name](options) for name in options.parts}
    except SluiceError as error:
        print(f"bench_chats: {error}", file=sys.stderr)
        return 1
    if options.json:
        write_result(options.json, "chats", results)
    return 0
