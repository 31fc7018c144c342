"""Model files in GGUF: their header, the types of their tensors, and the meaning of each architecture in them."""
