"""How a layer's attention computes its softmax.

Shape legend: H query heads.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionOptions:
    """Scores are multiplied by `scale`.

    `window`: the number of last tokens that a token attends to, itself included; the tokens before are not read.
    `None`: all tokens. `softcap`: scores then become softcap * tanh(score / softcap). `sinks`, float32 [H]: a logit
    per head that only adds to the denominator of its softmax (StreamingLLM, arXiv:2309.17453, section 3.3).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
