"""Writes GGUF files of a shape with random weights, by llama.cpp's own converter and `llama-quantize`.

    python -m benchmarks.experiments.gguf_0101.make_gguf --shape qwen3-0.6b --llama-cpp DIR --bin DIR --out DIR

`DIR` of `--llama-cpp` holds convert_hf_to_gguf.py; this Python needs the converter's packages: gguf and sentencepiece.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.model_shapes import SHAPES, read_shape, write_model
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.registry import find_family

STD = 0.02


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--tokenizer", type=Path, default=Path("../shared/tokenizers/qwen2"))
    parser.add_argument("--llama-cpp", type=Path, required=True)
    parser.add_argument("--bin", type=Path, required=True, help="holds llama-quantize")
    parser.add_argument("--types", nargs="*", default=["Q4_K_M", "Q8_0", "Q4_0"])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    whole = options.out / f"{options.shape}-F16.gguf"
    with tempfile.TemporaryDirectory(prefix="sluice-gguf-") as scratch:
        model_dir = Path(scratch)
        write_model(model_dir, SHAPES[options.shape], options.tokenizer)
        for name in ("vocab.json", "merges.txt"):
            if (options.tokenizer / name).is_file():
                (model_dir / name).write_bytes((options.tokenizer / name).read_bytes())
        save_file(make_tensors(SHAPES[options.shape]), model_dir / "model.safetensors", {"format": "pt"})
        converter = options.llama_cpp / "convert_hf_to_gguf.py"
        more = ["--no-mtp"] if is_hybrid(SHAPES[options.shape]) else []
        run([sys.executable, converter, model_dir, "--outtype", "f16", "--outfile", whole, *more])
    for name in options.types:
        run([options.bin / "llama-quantize", whole, options.out / f"{options.shape}-{name}.gguf", name])
    return 0


def is_hybrid(shape: dict[str, object]) -> bool:
    """True for Qwen3.5: its converter expects layers that predict further tokens, or a flag that there are none."""
    return read_shape(shape, 1024).has_states


def make_tensors(shape: dict[str, object]) -> dict[str, torch.Tensor]:
    """Returns random tensors under the names of a Hugging Face checkpoint, in float16."""
    if is_hybrid(shape):  # whose tensors have other names in our sources
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape), dtype=torch.float16)
        return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    hf_config, generator = HfConfig(dict(shape)), torch.Generator().manual_seed(0)
    family = find_family(hf_config)
    tensors: dict[str, torch.Tensor] = {}
    for source in family.list_sources(read_shape(shape, 1024)):
        for name in source.of_parts(source.name):
            values = torch.ones(source.shape) if len(source.shape) == 1 else torch.empty(source.shape)
            if len(source.shape) > 1:
                values.normal_(std=STD, generator=generator)
            tensors[name] = (values * 0 if name.endswith("bias") else values).half()
    return tensors


def run(command: list[object]) -> None:
    subprocess.run([str(part) for part in command], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
