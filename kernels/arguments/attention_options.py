"""How a layer's attention computes its softmax.

Shape legend: H query heads, X = 2 * reach + 1 distances.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionOptions:
    """Scores are multiplied by `scale`.

    `window`: the number of last tokens that a token attends to, itself included; the tokens before are not read.
    `None`: all tokens. `softcap`: scores then become softcap * tanh(score / softcap). `sinks`, float32 [H]: a logit
    per head that only adds to the denominator of its softmax (StreamingLLM, arXiv:2309.17453, section 3.3).
    `biases`, float32 [H, X], only in both directions: added to scaled scores, to that of a key x - reach tokens
    behind the query or, at both ends, further away. `sees_spans`: tokens attend up to `PrefillRows.last_keys`.
    `next_weight`: what the next product reads, which a GPU may prefetch meanwhile.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    biases: Tensor | None = None
    sees_spans: bool = False
    next_weight: Tensor | None = None
