"""The Triton kernels of the operations in `kernels/`, one file each, named as the operation."""
