"""The free memory of the GPUs that all models share. A child process asks for it: ours starts models by forks."""

import subprocess
import sys

from messages.config.server import ModelConfig
from messages.errors import UsageError
from supervisor.model.weight_bytes import may_use_gpu
from supervisor.python_process import python_environment

SUM_OF_FREE = """
import sys, torch
print(sum(torch.cuda.mem_get_info(name)[0] for name in sys.argv[1:]) if torch.cuda.is_available() else 0)
"""
TIMEOUT_S = 120.0


def free_gpu_bytes(model: ModelConfig) -> int:
    """Returns the free bytes of the GPUs that `--device` names, or of the first one; 0 if models run on the CPU.

    Raises `UsageError` if torch does not report them.
    """
    if not may_use_gpu(model):
        return 0
    command = [sys.executable, "-P", "-c", SUM_OF_FREE, *(model.devices or ("cuda:0",))]
    try:
        asked = subprocess.run(
            command, env=python_environment(), check=True, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        lines = str(getattr(error, "stderr", None) or error).strip().splitlines()
        raise UsageError(f"cannot find the free memory of the GPU; give --models-memory-gb ({lines[-1]})") from error
    return int(asked.stdout.split()[-1])
