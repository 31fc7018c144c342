"""The specializations of attention of prompts to latents that are compiled in tests."""

from kernels.gpu.launch_table import HOPPER, launch_on
from tests.kernels.gpu.cases.latent_decode import cases_of, in_float32, over_fp8

_CASES = cases_of("latent_prefill")
COMPILE_CASES = (
    *_CASES.values(),
    over_fp8(_CASES["GLM-4.7-Flash"], launch=launch_on(HOPPER, "latent_prefill", 20, 512, 64, 1)),
    in_float32(_CASES["GLM-4.7-Flash"], "latent_prefill"),
)
