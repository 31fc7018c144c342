"""Turns token ids into text as they come, and finds stop strings in it."""
