"""The Triton forms of the operations in `kernels/`, one file each, named as the operation."""
