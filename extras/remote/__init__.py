"""Engines on other machines: a proxy on the head, a joiner there (decision 0067)."""
