"""The functions that turn the numbers of a classification head, or logprobs, into probabilities and scores."""

import math
from collections.abc import Sequence
from typing import Literal

from messages.config.pooling import PoolingFacts

Activation = Literal["identity", "sigmoid", "softmax"]


def sigmoid(value: float) -> float:
    """Returns 1 / (1 + exp(-value)) without overflow."""
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    power = math.exp(value)
    return power / (1 + power)


def softmax(values: Sequence[float]) -> list[float]:
    """Returns exp(value) of each as a part of their sum, which is then 1. Accepts logprobs as well as logits."""
    most = max(values)
    powers = [math.exp(value - most) for value in values]
    total = math.fsum(powers)
    return [power / total for power in powers]


def activate(activation: Activation, values: Sequence[float]) -> list[float]:
    match activation:
        case "softmax":
            return softmax(values)
        case "sigmoid":
            return [sigmoid(value) for value in values]
        case "identity":
            return list(values)


def class_activation(facts: PoolingFacts) -> Activation:
    """Returns the function that makes probabilities of a head's logits.

    For several labels that is softmax unless the files name another; for one label the same function makes its score.
    """
    if facts.is_regression:
        return "identity"
    if len(facts.labels) > 1:
        return "sigmoid" if facts.score_activation == "sigmoid" else "softmax"
    return facts.score_activation or "sigmoid"
