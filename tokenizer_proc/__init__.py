"""Turns prompts into token ids, and refuses those that cannot be served."""
