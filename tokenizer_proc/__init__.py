"""Tokenizes prompts, and rejects those that cannot be served."""
