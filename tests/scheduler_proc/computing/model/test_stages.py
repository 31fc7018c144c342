import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from messages.config.server import ModelConfig
from scheduler_proc.computing.backends.cpu.backend import CpuBackend
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache.kv_tensors import KVTensors, allocate_cache
from scheduler_proc.computing.loading.open_weights import open_weights
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.blocks.embedding import TOKENS
from scheduler_proc.computing.model.blocks.head import HEAD, Head
from scheduler_proc.computing.model.blocks.norm import Norm
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.model.stages import FINAL_NORM, EmbeddingStage, HeadStage, LayerStage
from scheduler_proc.computing.model.workspace import NEW_MEMORY
from scheduler_proc.computing.parallel import ALONE
from scheduler_proc.computing.step.inputs import StepInputs
from scheduler_proc.computing.step.packing import make_step_inputs
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, plan_batch

PAGE_SIZE = 16


class Model:
    """A model of a checkpoint, computed by one decoder or by two halves that have loaded only their own weights."""

    def __init__(self, path: Path, **flags: str):
        self.config = make_config(path, **flags)
        hf_config = read_hf_config(path)
        self.family = find_family(hf_config)
        backend = CpuBackend()
        backend.load_kernels(ModelConfig(), lambda text, part: None)
        self.placement = backend.find_placement(self.config.model, self.config.cache, hf_config)
        self.description = self.family.describe(hf_config, self.config.facts.max_model_len)
        self.num_layers, self.path = len(self.description.layers), path

    def load(self, layers: range) -> Weights:
        shard, checkpoint = Shard(self.description, layers=layers), open_weights(self.path, "auto")
        return load_weights(shard, self.family, checkpoint, self.placement, lambda text, part: None)

    def run_whole(self, steps: list[StepInputs]) -> list[Tensor]:
        decoder = DescribedDecoder(self.description, self.load(range(self.num_layers)), self.max_len)
        cache = self.make_cache()
        return [decoder.logits(decoder.forward(step, cache.layers)) for step in steps]

    def run_halves(self, steps: list[StepInputs], num_first: int) -> list[Tensor]:
        model, ranges = self.description, (range(num_first), range(num_first, self.num_layers))
        first, second = (self.load(layers) for layers in ranges)
        own = first.keys() & second.keys()
        assert own <= ({TOKENS, HEAD} if model.has_tied_head else set())
        embedding = EmbeddingStage(model, first, ALONE, self.placement.dtype)
        halves = [
            LayerStage(model, layers, weights, self.max_len, ALONE)
            for layers, weights in zip(ranges, (first, second), strict=True)
        ]
        norm, tied = Norm(FINAL_NORM, model.final_norm, second), second.pop(TOKENS, None)
        head = HeadStage(norm, Head(model, second, tied or embedding.block.tokens_VE, ALONE))
        assert not second
        assert first.keys() <= {HEAD}  # quantized with the tied embedding
        caches, logits = [self.make_cache() for _ in halves], list[Tensor]()
        for step in steps:
            stream = embedding.begin(step, NEW_MEMORY)
            for half, layers, cache in zip(halves, ranges, caches, strict=True):
                half.apply(stream, [kept if index in layers else () for index, kept in enumerate(cache.layers)])
            logits.append(head.logits(head.end(stream)))
        return logits

    def make_cache(self) -> KVTensors:
        return allocate_cache(self.description, 8, PAGE_SIZE, self.placement, num_states=4)

    @property
    def max_len(self) -> int:
        return self.config.facts.max_model_len

    def make_steps(self) -> list[StepInputs]:
        """Returns a step of two prompts, one with two chunks, then mixed ones and one of decode rows."""
        chooser, has_states = (
            random.Random(5),
            any(mixer.state for layer in self.description.layers for mixer in layer.mixers),
        )
        prompts = [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in (21, 30)]
        rows = [
            Row(i, ids, len(ids), pages=[2 * i, 2 * i + 1], state_slot=i if has_states else -1)
            for i, ids in enumerate(prompts)
        ]
        steps: list[StepInputs] = []
        for counts in ((19, 18), (1, 11), (1, 1)):
            batch = plan_batch(len(steps), list(zip(rows, counts, strict=True)), PAGE_SIZE)
            steps.append(make_step_inputs(batch, torch.device("cpu")))
            for row, count in zip(rows, counts, strict=True):
                row.num_computed += count
        return steps


@pytest.mark.parametrize(
    ("variant", "flags"),
    [
        ("llama-gqa-tied", {}),
        ("llama-gqa-tied", {"quantization": "int8"}),
        ("gpt2-untied", {"dtype": "bfloat16"}),
        ("smollm3", {}),
        ("granite4-h", {}),
    ],
)
def test_two_halves_compute_the_same_bits_as_the_whole(tmp_path: Path, variant: str, flags: dict[str, str]):
    build_checkpoint(tmp_path, variant)
    model = Model(tmp_path, **flags)
    steps = model.make_steps()
    with torch.inference_mode():
        expected = model.run_whole(steps)
        for num_first in range(1, model.num_layers):
            found = model.run_halves(steps, num_first)
            assert all(map(torch.equal, expected, found))
