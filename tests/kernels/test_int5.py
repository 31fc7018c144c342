"""A toy format of 5 bits: loaded, kept in memory and computed without a line elsewhere."""

from functools import partial
from pathlib import Path

import torch

from kernels.formats.int5 import INT5
from scheduler_proc.computing.backends.cpu.weight_memory import WeightMemory
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.kv_cache.kv_tensors import allocate_cache
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.weights import load_weights
from scheduler_proc.computing.model.decoder import Decoder
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.step.inputs import make_step_inputs
from tests.checkpoints import build_checkpoint
from tests.scheduler_proc.computing.drive import Row, plan_batch


def test_codes_are_within_half_a_step() -> None:
    values = torch.randn(6, 32)
    weight = INT5.quantize(values)
    assert weight.stored.shape == (6, 4 + 20)
    step = values.abs().amax(1, keepdim=True) / 15
    assert ((weight.look_up(torch.arange(6)) - values).abs() <= step / 2 + 1e-6).all()


def test_a_model_in_five_bits(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    hf_config = read_hf_config(tmp_path)
    family = find_family(hf_config)
    model = family.describe(hf_config, 96)
    checkpoint = open_checkpoint(tmp_path, "auto")
    logits: dict[str | None, torch.Tensor] = {}
    for quantization in (None, "int4", "int5", "int8"):
        placement = Placement(torch.device("cpu"), torch.float32, quantization)
        path = tmp_path / f"weights-{quantization}"
        path.touch()
        memory = WeightMemory(path, b"identity".ljust(32))
        make = partial(load_weights, Shard(model), family, checkpoint, placement, lambda *_: None)
        weights = memory.load(make, lambda *_: None)
        decoder, cache = Decoder(model, weights, 96), allocate_cache(model, 4, 16, placement)
        row = Row(0, [5, 9, 200, 31], 4, pages=[0])
        with torch.inference_mode():
            step = make_step_inputs(plan_batch(0, [(row, 4)], 16), placement.device)
            logits[quantization] = decoder.logits(decoder.forward(step, cache.layers)).float()
    errors = {name: float((found - logits[None]).abs().mean()) for name, found in logits.items()}
    assert errors["int8"] < errors["int5"] < 2 * errors["int4"]
