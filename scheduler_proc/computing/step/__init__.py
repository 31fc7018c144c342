"""A step in tensors: its inputs, its shape, its results, and steps for warm-up."""
