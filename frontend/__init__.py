"""The HTTP door of the server: it owns connections, and every request until its final reply."""
