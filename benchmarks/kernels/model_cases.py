"""Steps of real models: so many tokens of such a shape, on a CPU and on a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.kernels.gpu.cases.model_shapes import MODEL_SHAPES, ModelShape

NUM_TOKENS = {"cpu": (1, 16, 256), "cuda": (1, 64, 256, 2048, 8192)}


@dataclass(frozen=True)
class ModelCase:
    shape: ModelShape
    num_tokens: int


def model_cases(models: Sequence[str]) -> dict[str, dict[str, ModelCase]]:
    """Returns the cases of a device, by what to call them."""
    return {
        device: {f"{model}, {num} tokens": ModelCase(MODEL_SHAPES[model], num) for model in models for num in nums}
        for device, nums in NUM_TOKENS.items()
    }
