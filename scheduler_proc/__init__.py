"""Decides which requests run in a step (`deciding`) and runs it (`computing`)."""
