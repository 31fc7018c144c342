"""Decodes token ids into text incrementally and finds stop strings in it."""
