"""The computing half of the scheduler: weights, KV cache, forward pass and sampling."""
