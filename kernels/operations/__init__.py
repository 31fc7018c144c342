"""The operations of a forward pass: each file has a launcher and a plain-torch reference."""
