"""`launch.py top`: the live view in a terminal."""
