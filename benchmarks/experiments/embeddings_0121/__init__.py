"""Vectors of texts over HTTP, compared with other servers and libraries."""
