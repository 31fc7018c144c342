"""Tiers below the KV cache: copies of its pages in the host's memory and on disk."""
