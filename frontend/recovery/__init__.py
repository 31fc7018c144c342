"""How open requests outlive the death of a process or the loss of a frame."""
