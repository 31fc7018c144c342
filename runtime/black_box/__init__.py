"""Records the frames of a process: always the latest ones, and with `--record` all of them (decision 0050)."""
