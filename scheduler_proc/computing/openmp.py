"""How torch's compute threads wait for each other. Needs no torch: what it sets is read when torch is loaded."""

from collections.abc import MutableMapping

SPIN_COUNT, BLOCK_TIME_MS = "3000", "1"
OPERATORS_CHOICE = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def limit_spinning(environment: MutableMapping[str, str]) -> None:
    """OpenMP threads that wait spin for some 0.1 ms and then sleep, unless the operator has said how they should wait.

    By default they spin for up to 15 ms at each of a step's hundreds of barriers. On a core of their own that is the
    quickest; where another program runs on it, they keep the very thread they wait for from running.
    """
    if not any(name in environment for name in OPERATORS_CHOICE):
        environment["GOMP_SPINCOUNT"] = SPIN_COUNT  # GCC's library, which torch's wheels bring along
        environment["KMP_BLOCKTIME"] = BLOCK_TIME_MS  # LLVM's and Intel's
