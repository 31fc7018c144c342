"""Measurements of the server and its parts; each prints a table and can write its result to a file."""
