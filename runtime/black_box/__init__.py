"""What a process keeps of its frames: the last ones always, and with `--record` all of them (decision 0050)."""
