"""The operations of a forward pass: each file has a launcher, which chooses by device, and a plain-torch reference."""
