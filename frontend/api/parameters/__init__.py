"""The parameters of a request: names, ranges, defaults."""
