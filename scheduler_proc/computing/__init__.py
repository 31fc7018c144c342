"""The computing half of the scheduler: weights, KV cache, forward pass and sampling.

How torch's threads wait is set here, before anything below imports torch, which reads it when it is loaded.
"""

import os
from collections.abc import MutableMapping

SPIN_COUNT, BLOCK_TIME_MS = "3000", "1"
OPERATORS_CHOICE = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """Makes waiting OpenMP threads spin for about 0.1 ms and then sleep, unless the operator has set how they wait.

    By default they spin for up to 15 ms at each of a step's hundreds of barriers. That is fastest on a core of their
    own; on a shared core they can keep the very thread they wait for from running.
    """
    if not any(name in environment for name in OPERATORS_CHOICE):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT  # GCC's library, which is part of torch's wheels
        environment["KMP_BLOCKTIME"] = BLOCK_TIME_MS  # LLVM's and Intel's


limit_spinning(os.environ)
