"""Measurements of the server and its parts; each prints a table and can write its result to a file."""

import scheduler_proc.computing  # noqa: F401  torch's threads wait as they do in a server
