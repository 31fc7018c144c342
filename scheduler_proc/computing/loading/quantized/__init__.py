"""Quantized Hugging Face checkpoints: one file per method, which makes one weight of a linear's several tensors."""
