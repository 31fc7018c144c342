"""C kernels for CPU tensors: their sources, how they are built, and how the launchers find them."""
