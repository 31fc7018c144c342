"""How open requests survive the death of a process or the loss of a frame."""
