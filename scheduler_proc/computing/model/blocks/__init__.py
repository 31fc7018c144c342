"""The blocks that models consist of: each declares its parameters and computes."""
