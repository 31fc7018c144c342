"""`POST /generate`, the native endpoint."""
