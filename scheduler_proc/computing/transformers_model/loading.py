"""Loads a model with transformers, or refuses it with the reason."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig, read_hf_config
from scheduler_proc.computing.model.families.registry import find_family
from scheduler_proc.computing.placement import Placement
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.transformers_model.decoder import TransformersDecoder
from scheduler_proc.computing.transformers_model.probe import describe, probe_calls
from scheduler_proc.computing.transformers_model.self_check import check

MAX_SHOWN = 6
FILES = {"auto": None, "safetensors": True, "pt": False}
"""By load format, `use_safetensors` of transformers."""

log = logging.getLogger("sluice.transformers")


def load_decoder(config: Config, placement: Placement, report: Report) -> TransformersDecoder:
    """Returns the model, checked against transformers' own attention. Raises `BootError` if it cannot be served."""
    _refuse_flags(config, placement)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model_dir, max_model_len = Path(config.facts.model_dir), config.facts.max_model_len
    _refuse_unknown(read_hf_config(model_dir), config.model.model_impl)
    with _refused_errors():
        hf_config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
        # A config.json can name implementations, such as kernels of the hub ("owner/repo"), also for its parts.
        hf_config._attn_implementation, hf_config._experts_implementation = "eager", None
        _refuse_model(hf_config, max_model_len)
        report("loading weights with transformers", None)
        module = _load(hf_config, config, placement).eval().requires_grad_(False)
        report("comparing with transformers' own attention", None)
        calls = probe_calls(module, max_model_len)
        model = describe(module, calls)
        check(module, calls, model, max_model_len)
    log.info(
        "%s: transformers %s computes the steps, uncaptured, with this server's attention: slower than a model that is "
        "described here",
        type(module).__name__,
        transformers.__version__,
    )
    return TransformersDecoder(module, model)


def _refuse_flags(config: Config, placement: Placement) -> None:
    model = config.model
    refused = {
        f"--quantization {placement.quantization}": placement.quantization is not None,
        f"--tensor-parallel {config.run.tensor_parallel}": config.run.tensor_parallel > 1,
        f"--load-format {model.load_format}": model.load_format not in (*FILES, "dummy"),
    }
    for flag, is_set in refused.items():
        if is_set:
            raise BootError(f"{flag}: not supported for a model that transformers computes (--model-impl)")


def _refuse_unknown(hf_config: HfConfig, impl: str) -> None:
    """Raises `BootError` for a model type that transformers lacks; if `impl` is auto, with what is known here."""
    model_type = hf_config.text("model_type", "none")
    if model_type in CONFIG_MAPPING:
        return
    reason = f"transformers {transformers.__version__} has no model_type {model_type}"
    try:
        if impl == "auto":
            find_family(hf_config)
    except BootError as error:
        reason = f"{error}; {reason}"
    raise BootError(f"{reason}, and this server runs no code of a checkpoint (auto_map)")


def _refuse_model(config: Any, max_model_len: int) -> None:
    """Raises `BootError` for a model that cannot be right here, by its configuration and its class."""
    where = f"config.json: {config.model_type}"
    if config.is_encoder_decoder:
        raise BootError(f"{where} is an encoder and a decoder: not supported")
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise BootError(f"{where}: transformers {transformers.__version__} has no decoder of this type")
    if getattr(config, "quantization_config", None) is not None:
        raise BootError(f"{where} has a quantization_config, which is not supported for a model of transformers")
    code = AutoModelForCausalLM._model_mapping[type(config)]
    if code._is_stateful:
        raise BootError(f"{where}: {code.__name__} keeps a state of earlier tokens that is not K and V: not supported")
    if not code._can_set_attn_implementation():
        raise BootError(f"{where}: the attention of {code.__name__} cannot be replaced in transformers: not supported")
    text_config = config.get_text_config()
    ropes = getattr(text_config, "rope_parameters", None) or {}
    for rope in (ropes, *ropes.values()):
        if isinstance(rope, dict) and rope.get("rope_type") in ("dynamic", "longrope"):
            longest = rope.get("original_max_position_embeddings") or text_config.max_position_embeddings
            if max_model_len > longest:
                raise BootError(
                    f"{where}: in transformers, rotary positions of the type {rope['rope_type']} depend on the longest "
                    f"row of a step beyond {longest} tokens: lower --max-model-len to {longest}"
                )


def _load(hf_config: Any, config: Config, placement: Placement) -> Any:
    if config.model.load_format == "dummy":
        torch.manual_seed(0)
        with placement.device:
            return AutoModelForCausalLM.from_config(hf_config, dtype=placement.dtype, trust_remote_code=False)
    module, found = AutoModelForCausalLM.from_pretrained(
        config.facts.model_dir,
        config=hf_config,
        dtype=placement.dtype,
        use_safetensors=FILES[config.model.load_format],
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if names := sorted(map(str, found.get(problem) or ())):
            raise BootError(f"the checkpoint has {len(names)} {problem}: {', '.join(names[:MAX_SHOWN])}")
    return module.to(placement.device)


@contextmanager
def _refused_errors() -> Iterator[None]:
    """Raises `BootError` for everything that transformers' code raises in the block."""
    try:
        yield
    except BootError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), "") or "no reason given"
        raise BootError(f"transformers {transformers.__version__}: {type(error).__name__}: {reason}") from error
