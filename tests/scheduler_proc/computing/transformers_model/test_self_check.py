"""The check before a model serves finds every difference from transformers' attention, and names the layer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP

from kernels.arguments.attention_options import AttentionOptions
from messages.errors import BootError
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.transformers_model import attention, probe
from tests.checkpoints import build_checkpoint, make_config

Change = Callable[[AttentionOptions], AttentionOptions]


def start(path: Path, dtype: str = "float32") -> None:
    load_runner(make_config(path, model_impl="transformers", dtype=dtype), lambda text, fraction: None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("variant", "change", "layer"),
    [
        ("gpt_neox", lambda options: replace(options, scale=options.scale * 1.01), "layer 0 .GPTNeoXLayer"),
        ("starcoder2", lambda options: replace(options, window=options.window + 1), "layer 0 .Starcoder2DecoderLayer"),
        ("gpt-oss", lambda options: replace(options, sinks=None), "layer 0 .GptOssDecoderLayer"),
        ("gpt-oss", lambda options: replace(options, window=None), "layer 0 .GptOssDecoderLayer"),
        ("gemma2", lambda options: replace(options, softcap=None), "layer 0 .Gemma2DecoderLayer"),
    ],
    ids=["scale", "window", "sinks", "no window", "softcap"],
)
def test_an_option_that_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, variant: str, change: Change, layer: str
) -> None:
    build_checkpoint(tmp_path, variant)
    monkeypatch.setattr(attention, "read_options", lambda *arguments: change(probe.read_options(*arguments)))
    with pytest.raises(BootError, match=f"computes something else: {layer}.* differs first"):
        start(tmp_path, dtype)


def test_a_layer_that_reads_other_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_checkpoint(tmp_path, "gpt_neox")
    forward = GPTNeoXMLP.forward

    def mix(self: GPTNeoXMLP, hidden: Tensor) -> Tensor:
        return forward(self, hidden) + hidden.cumsum(1)

    monkeypatch.setattr(GPTNeoXMLP, "forward", mix)
    with pytest.raises(BootError, match=r"layer 0 .GPTNeoXLayer. differs first, by .* It may keep another state"):
        start(tmp_path)


def test_an_error_in_the_models_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_checkpoint(tmp_path, "gpt_neox")

    def fail(self: GPTNeoXMLP, hidden: Tensor) -> Tensor:
        raise ValueError("no such hidden size")

    monkeypatch.setattr(GPTNeoXMLP, "forward", fail)
    with pytest.raises(BootError, match=r"transformers 5[.\d]+: ValueError: no such hidden size"):
        start(tmp_path)
