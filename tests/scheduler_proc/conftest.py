"""One thread computes: the tensors are small, and other processes want the cores."""

import torch

torch.set_num_threads(1)
