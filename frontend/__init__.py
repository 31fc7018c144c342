"""The HTTP frontend: it owns the connections, and every request until its final reply."""
