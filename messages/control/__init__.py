"""The control plane between a process and its launcher."""
