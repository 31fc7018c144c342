"""The families of towers, a file each: description, names of tensors, and what is particular to its computation."""
