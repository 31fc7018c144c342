"""The control plane between the processes and their launcher."""
