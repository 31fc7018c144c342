"""All quantization methods by the name that config.json has for them."""

from pathlib import Path

from runtime.model_files import read_object
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.loading.quantized.awq import Awq
from scheduler_proc.computing.loading.quantized.bitsandbytes import BitsAndBytes
from scheduler_proc.computing.loading.quantized.compressed_tensors import CompressedTensors
from scheduler_proc.computing.loading.quantized.fp8 import Fp8
from scheduler_proc.computing.loading.quantized.gptq import Gptq
from scheduler_proc.computing.loading.quantized.modelopt import Modelopt
from scheduler_proc.computing.loading.quantized.mxfp4 import Mxfp4
from scheduler_proc.computing.loading.quantized.stored_linear import QuantizationMethod

METHODS: dict[str, type[QuantizationMethod]] = {
    "awq": Awq,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": Fp8,
    "fp8": Fp8,
    "gptq": Gptq,
    "modelopt": Modelopt,
    "mxfp4": Mxfp4,
}
FILES = {"hf_quant_config.json": "modelopt", "quant_config.json": "awq", "quantize_config.json": "gptq"}
"""Methods by the file in which older checkpoints have their settings."""

ADVICE = "serve the model's unquantized safetensors, or a GGUF file of it"


def find_method(model_dir: Path) -> tuple[str, type[QuantizationMethod], HfConfig] | None:
    """Returns the method of a model directory, its name and configuration; `None` if weights are not quantized.

    Raises `BootError` for one that is not supported.
    """
    hf_config = read_hf_config(model_dir)
    config = hf_config.section("quantization_config") or hf_config.section("compression_config")
    if config is None and (found := next((each for each in FILES if (model_dir / each).is_file()), None)):
        fields = HfConfig(read_object(model_dir / found), found)
        return _find(FILES[found], fields.section("quantization") or fields)
    of_mlx = "bits" in (hf_config.section("quantization") or HfConfig({})).names()
    if config is None and not of_mlx:
        return None
    if config is None or not {"quant_method", "config_groups"} & set(config.names()):
        kind = "a checkpoint of MLX, which only MLX reads" if of_mlx else "of an unknown kind"
        raise hf_config.refuse("quantization_config", None if config is None else config.names(), f"{kind}; {ADVICE}")
    return _find(config.text("quant_method", "compressed-tensors"), config)


def _find(name: str, config: HfConfig) -> tuple[str, type[QuantizationMethod], HfConfig]:
    if name not in METHODS:
        raise config.refuse("quant_method", name, f"supported is {', '.join(METHODS)}; otherwise {ADVICE}")
    return name, METHODS[name], config
