"""A load generator for a running server: requests, their timing, connections and results."""
