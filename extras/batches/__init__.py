"""Batches: files of requests that are answered while nobody else needs the rows, each line once."""
