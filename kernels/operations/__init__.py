"""The operations of a forward pass: each file has the operation, which checks its arguments, and a torch reference."""
