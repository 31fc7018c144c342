"""Loading: every file layout gives the same parameters, and every damage a message that names it."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kernels.cpu.library import unload_kernels, use_library
from kernels.formats import packed
from kernels.operations.packed_linear import has_packed_kernel
from kernels.operations.quantize import quantize
from messages.errors import BootError
from scheduler_proc.computing.hf_config import read_hf_config
from scheduler_proc.computing.loading import formats
from scheduler_proc.computing.loading.checkpoint import open_checkpoint
from scheduler_proc.computing.loading.tied_head import has_own_head
from scheduler_proc.computing.loading.weights import load_weights, make_dummy_weights
from scheduler_proc.computing.model.blocks.weights import Weights
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.model.sharding import Shard
from scheduler_proc.computing.placement import Placement
from tests.checkpoints import SavedAs, build_checkpoint
from tests.kernels.c_library import built_library

CPU = Placement(torch.device("cpu"), torch.float32)


@pytest.fixture(autouse=True)
def no_kernels() -> None:
    """Other files of this process may have loaded some; they decide how weights are laid out."""
    unload_kernels()


def load(path: Path, load_format: Any = "auto", placement: Placement = CPU) -> Weights:
    hf_config = read_hf_config(path)
    family = find_family(hf_config)
    config = family.describe(hf_config, 96)
    return load_weights(
        Shard(config), family, open_checkpoint(path, load_format), placement, lambda text, fraction: None
    )


def assert_same(actual: Weights, expected: Weights) -> None:
    assert actual.keys() == expected.keys()
    for name, weight in expected.items():
        assert (actual[name].format, actual[name].numbers) == (weight.format, weight.numbers), name
        assert torch.equal(actual[name].stored, weight.stored), name


def edit(path: Path, **changes: torch.Tensor | None) -> None:
    """Replaces or (None) removes tensors of a model.safetensors; `__` in a name stands for a dot."""
    tensors = load_file(path / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize("variant", ["gpt2", "gpt2-untied", "llama-gqa-tied", "llama-biases", "qwen3-gqa-tied"])
def test_every_layout_of_files_gives_the_same_parameters(tmp_path: Path, variant: str) -> None:
    layouts: list[SavedAs] = ["safetensors", "sharded", "pt", "pt-sharded"]
    for layout in layouts:
        (tmp_path / layout).mkdir()
        build_checkpoint(tmp_path / layout, variant, layout)
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    expected = load(tmp_path / "safetensors")
    for layout in layouts:
        assert_same(load(tmp_path / layout), expected)


@pytest.mark.parametrize(("variant", "prefix"), [("gpt2", "transformer."), ("llama-gqa-tied", "model.")])
def test_names_without_the_prefix_of_the_whole_model(tmp_path: Path, variant: str, prefix: str) -> None:
    build_checkpoint(tmp_path, variant)
    expected = load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name.removeprefix(prefix): value for name, value in tensors.items()}, tmp_path / "model.safetensors")
    assert_same(load(tmp_path), expected)


def test_a_tied_checkpoint_may_hold_the_head_in_place_of_the_embedding(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    expected = load(tmp_path)
    edit(tmp_path, model__embed_tokens__weight=None, lm_head__weight=expected["embedding"].stored)
    assert_same(load(tmp_path), expected)


def test_values_are_cast(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    wide, narrow = load(tmp_path), load(tmp_path, placement=Placement(CPU.device, torch.bfloat16))
    assert narrow.keys() == wide.keys()
    for name, weight in wide.items():
        assert torch.equal(narrow[name].stored, weight.stored.bfloat16()), name


@pytest.mark.parametrize("variant", ["gpt2", "gpt2-untied", "llama-gqa-tied", "qwen3-biases-untied"])
@pytest.mark.parametrize("layout", ["safetensors", "pt-sharded"])
def test_linears_and_the_head_are_quantized_and_nothing_else_is(tmp_path: Path, variant: str, layout: SavedAs) -> None:
    build_checkpoint(tmp_path, variant, layout)
    plain = load(tmp_path)
    plain_head = plain.get("head", plain["embedding"])
    quantized = load(tmp_path, placement=Placement(CPU.device, torch.float32, "int4"))
    assert quantized.keys() == plain.keys() | {"head"}
    for name, weight in quantized.items():
        is_linear = name == "head" or (name.endswith(".weight") and "norm" not in name)
        assert (weight.format.name == "packed blocks") == is_linear, name
        if is_linear:
            expected = quantize(plain.get(name, plain_head).stored, 4)
            assert torch.equal(weight.stored, expected.stored), name
        else:
            assert torch.equal(weight.stored, plain[name].stored), name


@pytest.mark.parametrize(
    ("variant", "is_tied"), [("llama-gqa-tied", True), ("llama-biases", False), ("qwen3-biases-untied", False)]
)
def test_linears_are_packed_where_there_is_a_kernel_for_them(tmp_path: Path, variant: str, is_tied: bool) -> None:
    build_checkpoint(tmp_path, variant)
    placement = Placement(CPU.device, torch.bfloat16)
    plain = load(tmp_path, placement=placement)
    use_library(built_library())
    try:
        loaded = load(tmp_path, placement=placement)
        assert loaded.keys() == plain.keys()
        for name, weight in loaded.items():
            is_head = name == ("embedding" if is_tied else "head")
            is_linear = is_head or (name.endswith(".weight") and "norm" not in name)
            values = plain[name].stored
            assert (weight.format.name == "packed") == (is_linear and has_packed_kernel(values)), name
            if weight.format.name == "packed":
                assert weight.numbers == values.shape
                assert torch.equal(weight.look_up(torch.arange(len(values))), values), name
            else:
                assert torch.equal(weight.stored, values), name
    finally:
        unload_kernels()


def test_a_transposed_weight_is_packed_from_the_file_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_checkpoint(tmp_path, "gpt2")
    pieces: list[torch.Tensor] = []
    monkeypatch.setattr(formats, "has_packed_kernel", lambda weight: True)
    monkeypatch.setattr(packed, "allocate_packed", lambda *_: torch.empty(0))
    monkeypatch.setattr(packed, "pack_rows", lambda _, first_row, rows: pieces.append(rows))
    load(tmp_path)
    assert len(pieces) == 1 + 4 * 3, "a layer has four weights, each in one piece"
    assert all(rows.is_contiguous() or rows.T.is_contiguous() for rows in pieces)


def test_random_weights_are_quantized_too(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    hf_config = read_hf_config(tmp_path)
    config = find_family(hf_config).describe(hf_config, 96)
    placement = Placement(CPU.device, torch.float32, "int8")
    quantized = make_dummy_weights(Shard(config), placement, lambda text, fraction: None)
    plain = make_dummy_weights(Shard(config), CPU, lambda text, fraction: None)
    for name, source in (("head", "embedding"), ("layers.2.qkv.weight", "layers.2.qkv.weight")):
        assert torch.equal(quantized[name].stored, quantize(plain[source].stored, 8).stored)
    assert torch.equal(quantized["final_norm.weight"].stored, plain["final_norm.weight"].stored)


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2", "pt")
    expected = load(tmp_path)
    build_checkpoint(tmp_path, "gpt2", "safetensors")
    edit(tmp_path, transformer__ln_f__bias=torch.zeros(48))
    assert_same(load(tmp_path, "pt"), expected)
    assert not bool(load(tmp_path, "safetensors")["final_norm.bias"].stored.any())
    assert not bool(load(tmp_path, "auto")["final_norm.bias"].stored.any())


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mha")
    edit(tmp_path, model__norm__weight=None, model__layers__1__mlp__up_proj__weight=None)
    names = "model.layers.1.mlp.up_proj.weight, model.norm.weight"
    with pytest.raises(BootError, match=f"lacks 2 of 30 tensors: {names}"):
        load(tmp_path)


def test_misshaped_tensors_are_named_with_both_shapes(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    edit(tmp_path, transformer__wpe__weight=torch.zeros(90, 48), transformer__ln_f__bias=torch.zeros(47))
    with pytest.raises(BootError) as caught:
        load(tmp_path)
    assert "transformer.wpe.weight: expected [96, 48], got [90, 48]" in str(caught.value)
    assert "transformer.ln_f.bias: expected [48], got [47]" in str(caught.value)


def test_a_long_list_of_names_is_cut(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").unlink()
    save_file({"transformer.other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BootError, match=r"lacks 40 of 40 tensors: .*, and 34 more"):
        load(tmp_path)


def test_unexpected_tensors_are_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build_checkpoint(tmp_path, "gpt2")
    expected = load(tmp_path)
    causal_mask = {"transformer__h__0__attn__bias": torch.ones(1, 1, 96, 96)}
    edit(tmp_path, **causal_mask)
    with caplog.at_level(logging.WARNING):
        assert_same(load(tmp_path), expected)
        assert not caplog.records
        edit(tmp_path, score__weight=torch.zeros(2, 2))
        assert_same(load(tmp_path), expected)
    assert "1 tensors not used: score.weight" in caplog.text


@pytest.mark.parametrize(("layout", "file"), [("safetensors", "model.safetensors"), ("pt", "pytorch_model.bin")])
@pytest.mark.parametrize("keep", [0, 5, 1000, 0.9])
def test_a_damaged_file_is_named(tmp_path: Path, layout: SavedAs, file: str, keep: float) -> None:
    build_checkpoint(tmp_path, "gpt2", layout)
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(whole[: int(keep if keep > 1 or keep == 0 else keep * len(whole))])
    with pytest.raises(BootError, match=rf"{file}: cannot be read, it may be cut off or damaged: \S"):
        load(tmp_path)


def test_a_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2", "pt")
    torch.save({"transformer.wte.weight": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(BootError, match=r"pytorch_model\.bin: cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("index", "complaint"),
    [
        ("{", "is not valid JSON"),
        ("[" * 99_999, "is nested too deeply"),
        ("{}", "is not an index of weight files"),
        ('{"weight_map": []}', "is not an index of weight files"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "names gone.safetensors, which is not a file"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "names ../model.safetensors, which is not a file"),
    ],
)
def test_a_wrong_index_is_named(tmp_path: Path, index: str, complaint: str) -> None:
    build_checkpoint(tmp_path, "gpt2", "sharded")
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    with pytest.raises(BootError, match=rf"model\.safetensors\.index\.json: {complaint}"):
        load(tmp_path)


def test_a_directory_without_weights_reports_what_was_looked_for(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BootError) as caught:
        load(tmp_path)
    for part in (str(tmp_path), "model.safetensors.index.json", "pytorch_model.bin", "--load-format dummy"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object"),
        ('{"a":' * 99_999, "is nested too deeply"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
            "is a pointer of Git LFS.* `git lfs pull`",
        ),
    ],
)
def test_a_wrong_configuration_is_named(tmp_path: Path, text: str | None, complaint: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(BootError, match=rf"config\.json: {complaint}"):
        read_hf_config(tmp_path)


def test_dummy_weights_have_the_shapes_of_real_ones(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-biases")
    hf_config = read_hf_config(tmp_path)
    config = find_family(hf_config).describe(hf_config, 96)
    first, second = (make_dummy_weights(Shard(config), CPU, lambda text, fraction: None) for _ in range(2))
    assert_same(first, second)
    shapes, real_shapes = ({name: w.stored.shape for name, w in each.items()} for each in (first, load(tmp_path)))
    assert shapes == real_shapes
    assert bool((first["layers.0.mlp_norm.weight"].stored == 1).all())
    assert not bool(first["layers.0.qkv.bias"].stored.any())
    assert float(first["embedding"].stored.std()) == pytest.approx(0.02, rel=0.05)


def test_progress_goes_up_to_one(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2", "sharded")
    hf_config = read_hf_config(tmp_path)
    family = find_family(hf_config)
    fractions: list[float | None] = []
    load_weights(
        Shard(family.describe(hf_config, 96)),
        family,
        open_checkpoint(tmp_path, "auto"),
        CPU,
        lambda text, fraction: fractions.append(fraction),
    )
    num_tensors = len(json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"])
    assert fractions == [done / num_tensors for done in range(1, num_tensors + 1)]


@pytest.mark.parametrize(("single", "index"), [("safetensors", "model.safetensors"), ("pt", "pytorch_model.bin")])
def test_a_whole_file_goes_before_an_index(
    tmp_path: Path, single: SavedAs, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    build_checkpoint(tmp_path, "gpt2", single)
    expected = load(tmp_path)
    (tmp_path / f"{index}.index.json").write_text('{"weight_map": {"a": "gone"}}', encoding="utf-8")
    assert_same(load(tmp_path), expected)
    assert f"{index}.index.json is not used" in caplog.text


@pytest.mark.parametrize(("saved_as", "file"), [("sharded", "model.safetensors"), ("pt-sharded", "pytorch_model.bin")])
def test_shards_without_an_index(tmp_path: Path, saved_as: SavedAs, file: str) -> None:
    build_checkpoint(tmp_path, "gpt2", saved_as)
    expected = load(tmp_path)
    (tmp_path / f"{file}.index.json").unlink()
    assert_same(load(tmp_path), expected)
    sorted(tmp_path.glob("*-of-*"))[0].unlink()
    with pytest.raises(
        BootError, match=rf"no {file}.index.json, and of \d+ shards these are missing: 1; is the download"
    ):
        load(tmp_path)


@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied", "qwen2-mha-untied"])
@pytest.mark.parametrize("rename", ["_orig_mod.{}", "module.{}", "module._orig_mod.{}", "model._orig_mod.{}"])
def test_names_that_torch_has_wrapped(tmp_path: Path, variant: str, rename: str) -> None:
    build_checkpoint(tmp_path, variant)
    expected = load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    if rename.startswith("model."):
        renamed = {
            name.replace("layers.", "layers._orig_mod.").replace("h.", "h._orig_mod."): tensors[name]
            for name in tensors
        }
    else:
        renamed = {rename.format(name): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    assert_same(load(tmp_path), expected)


@pytest.mark.parametrize(("old", "new"), [("model.", "model.language_model."), ("", "language_model.")])
def test_the_language_model_of_a_larger_one(tmp_path: Path, old: str, new: str) -> None:
    build_checkpoint(tmp_path, "llama-mha")
    expected = load(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {new + name.removeprefix(old) if name.startswith(old) else name: tensors[name] for name in tensors}
    save_file(renamed | {"model.visual.patch": torch.zeros(1)}, tmp_path / "model.safetensors")
    assert_same(load(tmp_path), expected)


def test_what_a_checkpoint_has_instead_is_named(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mha")
    save_file({"decoder.blocks.0.w": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(BootError, match=r"lacks 30 of 30 tensors: .*; it has decoder\.blocks\.0\.w"):
        load(tmp_path)


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_a_state_within_a_pickle(tmp_path: Path, key: str) -> None:
    build_checkpoint(tmp_path, "gpt2", "pt")
    expected = load(tmp_path)
    state = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    torch.save({"epoch": 3, key: state}, tmp_path / "pytorch_model.bin")
    assert_same(load(tmp_path), expected)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_pointer_in_place_of_the_weights(tmp_path: Path, file: str) -> None:
    build_checkpoint(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / file).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    with pytest.raises(BootError, match=rf"{file}: is a pointer of Git LFS.*`git lfs pull` in {tmp_path}"):
        load(tmp_path)


def test_a_wrong_gguf_file_is_named(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "gpt2")
    (tmp_path / "model.safetensors").rename(tmp_path / "model-q4.gguf")
    with pytest.raises(BootError, match=r"model-q4\.gguf: is not a GGUF file"):
        load(tmp_path)


@pytest.mark.parametrize("architectures", [None, []])
@pytest.mark.parametrize("variant", ["gpt2", "llama-mha", "qwen2-mha-untied", "qwen3-gqa-tied"])
def test_without_an_architecture_the_type_decides(
    tmp_path: Path, variant: str, architectures: list[str] | None
) -> None:
    build_checkpoint(tmp_path, variant)
    named = find_family(read_hf_config(tmp_path))
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": architectures}))
    assert find_family(read_hf_config(tmp_path)) is named
    (tmp_path / "config.json").write_text(json.dumps(fields | {"architectures": architectures, "model_type": "x"}))
    with pytest.raises(BootError, match=r"names no architecture \(model_type x\)"):
        find_family(read_hf_config(tmp_path))


@pytest.mark.parametrize("variant", ["gpt2", "llama-gqa-tied"])
def test_a_tied_head_that_differs_is_used(tmp_path: Path, variant: str, caplog: pytest.LogCaptureFixture) -> None:
    """As `transformers` does, which warns too; before, it was dropped in silence."""
    build_checkpoint(tmp_path, variant)
    hf_config = read_hf_config(tmp_path)
    family = find_family(hf_config)
    config = family.describe(hf_config, 96)
    assert config.has_tied_head
    embedding = next(t for n, t in load_file(tmp_path / "model.safetensors").items() if "embed" in n or "wte" in n)
    edit(tmp_path, lm_head__weight=embedding.clone())
    assert not has_own_head(config, family, open_checkpoint(tmp_path, "auto"))
    edit(tmp_path, lm_head__weight=embedding + 1)
    assert has_own_head(config, family, open_checkpoint(tmp_path, "auto"))
    assert "lm_head.weight differs from it: it is used" in caplog.text


@pytest.mark.parametrize("name", ["n_layer", "n_embd", "n_head", "n_positions", "vocab_size", "n_inner"])
@pytest.mark.parametrize("value", [10**9, 10**30, -1, 0, 1.5, "2", True, [1], {"a": 1}, float("nan"), float("inf")])
def test_a_count_that_cannot_be_is_refused_with_its_name(tmp_path: Path, name: str, value: Any) -> None:
    """Before anything is allocated, or looped over."""
    build_checkpoint(tmp_path, "gpt2")
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {name: value}))
    hf_config = read_hf_config(tmp_path)
    with pytest.raises(BootError, match=rf"config\.json: {name} must be (a positive integer|at most \d+), not "):
        find_family(hf_config).describe(hf_config, 96)
