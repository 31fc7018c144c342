"""A load generator for a running server: what to send, when, over which connections, and what came of it."""
