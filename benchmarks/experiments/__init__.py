"""Benchmarks that supported one decision each; folder names end with its number. `make bench` does not run them."""
