"""The choice of an engine for a request, if there are several (`--data-parallel`)."""
