"""Backends: everything that depends on the device, one folder each."""
