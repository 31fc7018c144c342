"""The model: one decoder for all families, its weights as layers, and the tensors of its KV cache."""
