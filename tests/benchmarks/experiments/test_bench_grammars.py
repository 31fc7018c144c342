"""The benchmark of grammars runs, on the bundled model."""

from pathlib import Path

from benchmarks.experiments.structured_output_0044.bench_grammars import GRAMMARS, time_streams, walk_all
from messages.config.server import Config
from scheduler_proc.computing.load_runner import load_runner
from tests.checkpoints import make_config

MODEL_DIR = Path(__file__).resolve().parents[3] / "assets" / "shakespeare-gpt2"


def config_of_the_bundled_model() -> Config:
    return make_config(MODEL_DIR, max_num_seqs=2)


def test_bitmasks_and_streams_are_timed() -> None:
    config = config_of_the_bundled_model()
    walks = walk_all(config, 1)
    assert list(walks) == [*GRAMMARS, "all"]
    assert walks["all"].num_tokens == sum(walks[name].num_tokens for name in GRAMMARS)
    assert walks["all"].bitmask_p99_us >= walks["all"].bitmask_p50_us > 0
    streams = time_streams(config, load_runner(config, lambda text, fraction: None), 2, 1, 3)
    assert streams.plain_step_ms > 0
    assert streams.speed > 0
