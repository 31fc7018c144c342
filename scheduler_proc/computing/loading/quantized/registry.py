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
MODELOPT_FILE = "hf_quant_config.json"


def find_method(model_dir: Path) -> tuple[str, type[QuantizationMethod], HfConfig] | None:
    """Returns the method of a model directory, its name and configuration; `None` if weights are not quantized.

    Raises `BootError` for one that is not supported.
    """
    hf_config = read_hf_config(model_dir)
    config = hf_config.section("quantization_config") or hf_config.section("compression_config")
    name = "compressed-tensors"
    if config is not None:
        name = config.text("quant_method", name)
    elif (model_dir / MODELOPT_FILE).is_file():
        config, name = (
            HfConfig(read_object(model_dir / MODELOPT_FILE), MODELOPT_FILE).section("quantization"),
            "modelopt",
        )
    if config is None:
        return None
    if name not in METHODS:
        raise config.refuse("quant_method", name, f"supported is {', '.join(METHODS)}")
    return name, METHODS[name], config
