"""Benchmarks of single operations, each compared with the machine's own limits in the same run."""
