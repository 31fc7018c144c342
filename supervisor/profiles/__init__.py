"""Profiles: recording one on command, and merging those of several processes into one trace."""
