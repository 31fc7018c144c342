"""C kernels for CPU tensors: their sources, their build, and their launchers."""
