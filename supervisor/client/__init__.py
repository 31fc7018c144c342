"""The side of a command: finding a running server and asking it."""
