"""HTTP itself: the server, what an endpoint is, bodies, keys, event streams, errors as replies."""
