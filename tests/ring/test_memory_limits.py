"""A model that does not fit into the memory limit of one process is served by two stages, each under that limit."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import server_process
from benchmarks.load.server_facts import ServerUnavailableError
from benchmarks.server_process import ServerProcess
from runtime.machine import CGROUP
from tests.ring.client import RingClient
from tests.ring.conftest import READY_TIMEOUT_S
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.ring

MIB = 1 << 20
NUM_LAYERS, HIDDEN, MLP = 8, 1024, 2816
LAYER_BYTES = 4 * (4 * HIDDEN**2 + 3 * HIDDEN * MLP)
LIMIT = NUM_LAYERS * LAYER_BYTES
"""Less than all layers take with the rest of a process, which is about as large as half of them."""

FLAGS = ("--cpu-threads", "1", "--dtype", "float32", "--no-standby", "--num-pages", "32")
FLAGS += ("--max-num-batched-tokens", "32", "--no-share-weights")
"""The launcher would ask for the memory of shared weights, and it is under no limit."""

EQUAL_STAGES = ("--stages", "4,4")
"""On a busy machine measurements differ by chance, and one process would get more layers than its limit allows."""

PROMPT = [5, 6, 7] * 8
ROOTS = {"memory.limit_in_bytes": CGROUP / "memory", "memory.max": CGROUP}
"""Where control groups with this file are made."""

MakeGroup = Callable[[str, int], Path]


@pytest.fixture
def make_group() -> Iterator[MakeGroup]:
    """Makes a control group of this name with a limit of its memory, or skips the test."""
    groups: list[Path] = []

    def make_group(name: str, num_bytes: int) -> Path:
        for file, root in ROOTS.items():
            group = root / f"sluice-{os.getpid()}-{name}"
            with suppress(OSError):
                group.mkdir()
                groups.append(group)
                if not (group / "cgroup.procs").exists():  # another file system is mounted there
                    continue
                (group / file).write_text(f"{num_bytes}", encoding="ascii")
                with suppress(OSError):  # a system without swap
                    (group / "memory.swap.max").write_text("0", encoding="ascii")
                return group
        pytest.skip("limits on memory of a control group cannot be set here")

    yield make_group
    for group in groups:
        group.rmdir()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of eight equal layers of 49 MiB, with the tokenizer of the small one."""
    path = tmp_path_factory.mktemp("llama")
    write_tiny_llama(path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config |= {"hidden_size": HIDDEN, "intermediate_size": MLP, "num_hidden_layers": NUM_LAYERS}
    (path / "config.json").write_text(json.dumps(config | {"num_attention_heads": 8, "num_key_value_heads": 8}))
    rng = np.random.default_rng(3)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) * np.float32(0.03)

    weights = {f"self_attn.{name}_proj.weight": draw(HIDDEN, HIDDEN) for name in "qkvo"}
    weights |= {f"mlp.{name}_proj.weight": draw(MLP, HIDDEN) for name in ("gate", "up")}
    weights |= {"mlp.down_proj.weight": draw(HIDDEN, MLP), "input_layernorm.weight": np.ones(HIDDEN, np.float32)}
    weights["post_attention_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    layers = {f"model.layers.{index}.{name}": value for index in range(NUM_LAYERS) for name, value in weights.items()}
    others = {
        "model.embed_tokens.weight": draw(config["vocab_size"], HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    save_file(layers | others, path / "model.safetensors", metadata={"format": "pt"})
    return path


@contextmanager
def serving(model: Path, groups: dict[str, Path], *flags: str) -> Iterator[RingClient]:
    """A server with these processes in control groups. Raises `ServerUnavailableError` if it does not start."""
    launch = [sys.executable, "-m", "tests.ring.limited_launch", json.dumps(groups, default=str)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_process, "LAUNCH", launch)
        server = ServerProcess(["--model", str(model), *FLAGS, *flags])
    try:
        target = server.wait_until_ready(READY_TIMEOUT_S)
        yield RingClient(f"http://{target.host}:{target.port}", server.run_dir)
    finally:
        server.stop()


def serve(model: Path, groups: dict[str, Path], flags: Sequence[str] = ()) -> list[int]:
    with serving(model, groups, *flags) as ring:
        return ring.generate(PROMPT, max_tokens=8, ignore_eos=True).token_ids


@pytest.mark.timeout(300)
def test_two_stages_serve_what_is_too_large_for_one_process(model: Path, make_group: MakeGroup) -> None:
    groups = {name: make_group(name, LIMIT) for name in ("scheduler", "rank1")}
    with pytest.raises(ServerUnavailableError, match="killed by SIGKILL"):
        serve(model, {"scheduler": groups["scheduler"]})
    with serving(model, groups, "--pipeline-parallel", "2", *EQUAL_STAGES) as ring:
        found = ring.generate(PROMPT, max_tokens=8, ignore_eos=True).token_ids
        for name in groups:
            assert ring.gauges(name)["weights_bytes"] < 1.05 * LIMIT / 2
    assert found == serve(model, {})


def test_stages_are_refused_with_the_numbers_of_their_limit(model: Path, make_group: MakeGroup) -> None:
    groups = {"rank1": make_group("small", LIMIT * 3 // 4)}
    message = r"the stages need 0\.\d\d GiB, and 0\.\d\d GiB are free.* of one request: rank1 0\.19, .*\. Lower"
    with pytest.raises(ServerUnavailableError, match=message):
        serve(model, groups, ("--pipeline-parallel", "2", *EQUAL_STAGES))
