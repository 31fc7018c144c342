"""The least time that the offline benchmark can take: what must be read and multiplied, at the device's limits.

In each decode step all weights are read once, the K and V of all rows' tokens (a shared prefix once for all rows), and
the logits are written and read; the products of prefill are bounded by the rate of products. What a step launches,
plans and samples counts as nothing, and steps are as few as may be.
"""

from dataclasses import dataclass

from benchmarks.model_bytes import kv_bytes, weight_bytes
from scheduler_proc.computing.model.description import ModelDescription


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request, `num_shared` of each prompt alike; `max_rows` run in one step."""

    inputs: list[int]
    outputs: list[int]
    num_shared: int
    max_rows: int

    @property
    def num_new_input_tokens(self) -> int:
        """Tokens of all prompts that must be computed; what is shared, once."""
        return sum(self.inputs) - self.num_shared * (len(self.inputs) - 1)

    @property
    def num_decode_steps(self) -> int:
        """The first token of a request comes with its prompt."""
        return max(max(self.outputs) - 1, -(-sum(count - 1 for count in self.outputs) // self.max_rows))


@dataclass(frozen=True)
class DeviceLimits:
    bytes_per_s: float
    flop_per_s: float


def floor_s(
    model: ModelDescription, itemsize: int, lengths: Lengths, limits: DeviceLimits, token_bytes: int | None = None
) -> dict[str, float]:
    """Returns the seconds of each part, and of all as `total`.

    `token_bytes` are those of a token's K and V where they are not of `itemsize`.
    """
    # Output token i of a request (from 1) is computed from the i - 1 before it and the prompt.
    num_keys = sum(
        (count - 1) * (num_input - lengths.num_shared) + (count - 1) * count // 2
        for num_input, count in zip(lengths.inputs, lengths.outputs, strict=True)
    )
    num_keys += lengths.num_shared * lengths.num_decode_steps
    num_rows = sum(lengths.outputs)
    head_parameters = model.vocab_size * model.hidden_size
    layer_parameters = weight_bytes(model, 1) - head_parameters
    prefill_flop = 2 * layer_parameters * lengths.num_new_input_tokens + 2 * head_parameters * len(lengths.inputs)
    parts = {
        "weights": weight_bytes(model, itemsize) * lengths.num_decode_steps / limits.bytes_per_s,
        "kv": (token_bytes or kv_bytes(model, itemsize)) * num_keys / limits.bytes_per_s,
        "logits": 2 * itemsize * model.vocab_size * num_rows / limits.bytes_per_s,
        "prefill": prefill_flop / limits.flop_per_s,
    }
    return parts | {"total": sum(parts.values())}
