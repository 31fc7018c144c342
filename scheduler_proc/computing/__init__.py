"""The computing half of the scheduler: weights, KV cache, forward pass and sampling.

How torch's threads wait is set here, before anything below imports torch.
"""

import os

from scheduler_proc.computing.openmp import limit_spinning

limit_spinning(os.environ)
