"""The structures that operations pass to the kernels of every device."""
