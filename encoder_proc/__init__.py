"""The encoder: images in, rows of encodings out, next to the ring that text passes through."""
